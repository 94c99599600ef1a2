// Arena: one block of memory, sized once; `allocate` hands out 64-byte aligned pieces and `reset` takes all
// back. One thread. Nothing in a step allocates from the system.
#pragma once

#include <cassert>
#include <cstddef>

#include "base/buffer.h"

namespace tandem {

class Arena {
 public:
  static Result<Arena> create(size_t bytes) {
    Arena arena;
    TANDEM_ASSIGN(arena.block_, OwnedBuffer::allocate(bytes));
    return arena;
  }

  // Bytes that `bytes` take in an arena: for the caller that computes its size.
  static constexpr size_t rounded(size_t bytes) {
    return (bytes + kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment;
  }

  // nullptr when it does not fit: the size was computed wrong, which is a bug of the caller.
  std::byte* allocate(size_t bytes) {
    const size_t taken = rounded(bytes);
    if (taken > block_.size() - used_) {
      assert(!"arena too small");
      return nullptr;
    }
    std::byte* data = block_.data() + used_;
    used_ += taken;
    return data;
  }
  template <class T>
  T* allocate_array(size_t count) {
    return reinterpret_cast<T*>(allocate(count * sizeof(T)));
  }

  void reset() { used_ = 0; }
  size_t used() const { return used_; }
  size_t capacity() const { return block_.size(); }

 private:
  OwnedBuffer block_;
  size_t used_ = 0;
};

}  // namespace tandem
