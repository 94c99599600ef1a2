// FreeSlots: the slots of a channel that nobody holds. The lowest is taken first, so that light traffic stays
// in a few slots, in the same order every time: they stay in the caches of both sides, and the one that the
// peer read longest ago is written first. Not thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

namespace tandem {

class FreeSlots {
 public:
  explicit FreeSlots(uint32_t slots = 0) {
    for (uint32_t slot = 0; slot < slots; ++slot) heap_.push_back(slot);
  }
  bool empty() const { return heap_.empty(); }
  uint32_t size() const { return static_cast<uint32_t>(heap_.size()); }
  uint32_t take() {
    std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
    const uint32_t slot = heap_.back();
    heap_.pop_back();
    return slot;
  }
  void give(uint32_t slot) {
    heap_.push_back(slot);
    std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
  }

 private:
  std::vector<uint32_t> heap_;
};

}  // namespace tandem
