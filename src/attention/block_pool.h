// BlockPool: the memory of one paged state group: `num_blocks` blocks in each layer, handed out by number.
// One thread.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/buffer.h"
#include "program/state_caches.h"

namespace tandem {

class BlockPool {
 public:
  // `group`: its number among the model's, for caches(). resource_exhausted with the bytes that it would
  // take.
  static Result<BlockPool> create(const StateGroupSpec& spec, uint32_t num_blocks, uint32_t group = 0);

  const StateGroupSpec& spec() const { return spec_; }
  uint32_t num_blocks() const { return num_blocks_; }
  uint32_t free_blocks() const { return static_cast<uint32_t>(free_.size()); }
  size_t bytes() const { return memory_.size(); }
  // Blocks that `tokens` tokens take.
  uint32_t blocks_for(uint32_t tokens) const {
    return (tokens + spec_.tokens_per_block - 1) / spec_.tokens_per_block;
  }

  // Nothing when the pool is empty. The contents are whatever the last owner left.
  std::optional<int32_t> allocate();
  void release(int32_t block);

  // The group's views: what a program is built with.
  const StateCaches& caches() const { return caches_; }

 private:
  StateGroupSpec spec_;
  uint32_t num_blocks_ = 0;
  OwnedBuffer memory_;  // [layers, num_blocks, bytes_per_block]
  StateCaches caches_;
  std::vector<int32_t> free_;  // a stack: a block that was just used is likely still in cache
  std::vector<bool> is_free_;  // [num_blocks]: catches a double release
};

}  // namespace tandem
