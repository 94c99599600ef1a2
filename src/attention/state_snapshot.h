// StateSnapshot: what is needed to continue a sequence from a position, as references to its blocks. The
// blocks are shared read-only with the sequence that it was taken of and with those restored from it, and are
// freed when the last reference goes. Nothing is copied. One thread; the pools outlive it.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "attention/state_pools.h"

namespace tandem {

class StateSnapshot {
 public:
  StateSnapshot() = default;
  StateSnapshot(StateSnapshot&& other) noexcept { swap(other); }
  StateSnapshot& operator=(StateSnapshot&& other) noexcept {
    StateSnapshot(std::move(other)).swap(*this);
    return *this;
  }
  StateSnapshot(const StateSnapshot&) = delete;
  StateSnapshot& operator=(const StateSnapshot&) = delete;
  ~StateSnapshot() { release(); }

  uint32_t length() const { return length_; }  // tokens that it continues from
  size_t num_blocks() const;                   // that it refers to, over all groups

 private:
  friend class SequenceState;

  struct Group {
    uint32_t first = 0;           // number of blocks[0] in the sequence
    std::vector<int32_t> blocks;  // up to length_
  };
  void swap(StateSnapshot& other) noexcept {
    std::swap(pools_, other.pools_);
    std::swap(length_, other.length_);
    std::swap(groups_, other.groups_);
  }
  void release();

  StatePools* pools_ = nullptr;
  uint32_t length_ = 0;
  std::vector<Group> groups_;
};

}  // namespace tandem
