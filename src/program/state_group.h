// StateGroupSpec: one kind of memory that a sequence needs while it lives, as its model declares it. A
// sequence's state is a set of such groups, each paged: blocks of tokens, found through a table of its own.
//
// What a model needs only for a while (a sliding window, the inputs of an entry that is not complete yet) is
// a paged group with a short retention. Its raw inputs stay in place until they are out of reach, so going
// back a few tokens changes a length and copies nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"

namespace tandem {

// Blocks of every group begin at multiples of this many tokens, whatever their own size: the points from
// which a kept state can be continued. 128: one compressed entry of the widest ratio (DeepSeek-V4's HCA).
inline constexpr uint32_t kStateAlignment = 128;

struct StateGroupSpec {
  std::string name = "kv";
  std::vector<uint32_t> layers;   // that hold such a block; block b exists in each of them
  uint32_t tokens_per_block = 0;  // divides kStateAlignment
  size_t bytes_per_block = 0;     // in one layer
  // 0: the group keeps everything. Otherwise a row at position p reads no position before p - retain_tokens,
  // and a block that no row can reach any more is released: its entry in the table becomes -1.
  uint32_t retain_tokens = 0;
  uint32_t snapshot_every = 0;  // tokens between states that may be kept for reuse; 0: any block boundary
  DType dtype = DType::bf16;

  bool keeps_all() const { return retain_tokens == 0; }
  uint64_t blocks_for(uint64_t tokens) const { return (tokens + tokens_per_block - 1) / tokens_per_block; }
  size_t bytes_of_all_layers() const { return bytes_per_block * layers.size(); }
};

}  // namespace tandem
