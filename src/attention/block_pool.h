// BlockPool: the memory of one state group: `num_blocks` blocks in each layer, handed out by number. A block
// may have several owners, who read it; it is free again when the last one lets go. One thread.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/buffer.h"
#include "program/state_caches.h"

namespace tandem {

class BlockPool {
 public:
  // `group`: its number among the model's, under which `caches` gets its views. invalid_argument: no blocks.
  // resource_exhausted with the bytes that it would take.
  static Result<BlockPool> create(const StateGroupSpec& spec, uint32_t num_blocks, uint32_t group,
                                  StateCaches& caches);

  const StateGroupSpec& spec() const { return spec_; }
  uint32_t num_blocks() const { return num_blocks_; }
  uint32_t free_blocks() const { return static_cast<uint32_t>(free_.size()); }
  size_t bytes() const { return memory_.size(); }
  // Blocks that `tokens` tokens take.
  uint32_t blocks_for(uint32_t tokens) const {
    return (tokens + spec_.tokens_per_block - 1) / spec_.tokens_per_block;
  }

  // With one owner. Nothing when the pool is empty. The contents are whatever the last owner left.
  std::optional<int32_t> allocate();
  // One owner more, or fewer.
  void add_reference(int32_t block);
  void release(int32_t block);
  bool is_shared(int32_t block) const { return references_[static_cast<size_t>(block)] > 1; }

 private:
  StateGroupSpec spec_;
  uint32_t num_blocks_ = 0;
  OwnedBuffer memory_;                // [layers, num_blocks, bytes_per_block]
  std::vector<int32_t> free_;         // a stack: a block that was just used is likely still in cache
  std::vector<uint32_t> references_;  // [num_blocks]: owners; 0: free
};

}  // namespace tandem
