// BlockPool: the memory of one state group: `num_blocks` blocks in each layer, handed out by number. A block
// may have several owners, who read it; it is free again when the last one lets go. One thread.
//
// A block may be *kept*: a cache knows what it holds. When it is free it waits in line and can be owned again
// as it is; allocate() takes such blocks last, of them the one that has been free for longest.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <utility>
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
  // Without an owner, kept ones included.
  uint32_t free_blocks() const { return static_cast<uint32_t>(free_.size()) + line_size_; }
  uint32_t kept_blocks() const { return num_kept_; }  // free or not
  size_t bytes() const { return memory_.size(); }
  // Blocks that `tokens` tokens take.
  uint32_t blocks_for(uint32_t tokens) const {
    return (tokens + spec_.tokens_per_block - 1) / spec_.tokens_per_block;
  }

  // With one owner. Nothing when the pool is empty. The contents are whatever the last owner left.
  std::optional<int32_t> allocate();
  // One owner more, or fewer. A free block can be owned again only while it is kept.
  void add_reference(int32_t block);
  void release(int32_t block);
  bool is_shared(int32_t block) const { return references_[static_cast<size_t>(block)] > 1; }
  bool is_free(int32_t block) const { return references_[static_cast<size_t>(block)] == 0; }

  // Of an owned block, and of any.
  void keep(int32_t block);
  void forget(int32_t block);
  bool is_kept(int32_t block) const { return kept_[static_cast<size_t>(block)]; }
  // Called by allocate() with the kept block that it takes, which is kept no more; may forget others.
  void on_reuse(std::function<void(int32_t)> listener) { on_reuse_ = std::move(listener); }
  // The free kept blocks, from the one that allocate() would take last.
  std::vector<int32_t> line_from_last() const;

  // The bytes of a block in the layer that is number `layer` of the spec's.
  std::span<std::byte> bytes_of(int32_t block, size_t layer);

 private:
  StateGroupSpec spec_;
  uint32_t num_blocks_ = 0;
  OwnedBuffer memory_;                // [num_blocks, layers, bytes_per_block]
  std::vector<int32_t> free_;         // a stack: a block that was just used is likely still in cache
  std::vector<uint32_t> references_;  // [num_blocks]: owners; 0: free
  // The line of free kept blocks, a ring of links with one more entry, num_blocks, that is its head.
  struct Link {
    int32_t before = 0, after = 0;
  };
  void stand_in_line(int32_t block);
  void leave_line(int32_t block);
  std::vector<Link> line_;  // [num_blocks + 1]
  uint32_t line_size_ = 0;
  std::vector<bool> kept_;  // [num_blocks]
  uint32_t num_kept_ = 0;
  std::function<void(int32_t)> on_reuse_;
};

}  // namespace tandem
