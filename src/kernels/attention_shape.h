// The tiles and tasks of the attention kernels, as planner and kernels both see them. Everything here is
// always inlined: it is compiled under several instruction sets.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/attention_plan.h"
#include "kernels/kernel_args.h"
#include "kernels/kernel_table.h"
#include "kernels/paged_kv_layout.h"

namespace tandem {

// Keys of a tile: their scores are all there before the softmax, so that a tile needs no correction, and a
// tile's keys and values (256 KiB for a head of 128 in bf16) stay in L2 beside the scores of kMostQueries.
inline constexpr uint32_t kTilePanels = 32;
inline constexpr uint32_t kTileKeys = kTilePanels * kPanelTokens;
// Of one query; the extra 64 bytes keep rows out of each other's cache sets.
inline constexpr uint32_t kScoreStride = kTileKeys + 16;
// Queries (rows times heads) of a task: they share each key that comes from L2. With this many that costs
// nothing that could be measured.
inline constexpr uint32_t kMostQueries = 64;

// A partial result: sums [padded_dim], the maximum, the denominator.
[[gnu::always_inline]] inline uint32_t partial_floats(uint32_t value_dim) {
  return (value_dim + 15) / 16 * 16 + 16;
}

// Heads that share keys, cut so that a task's queries fit the scratch.
struct HeadChunks {
  uint32_t sharing, per_chunk, count;

  [[gnu::always_inline]] HeadChunks(uint32_t sharing_heads, uint32_t most_heads)
      : sharing(sharing_heads),
        per_chunk(sharing_heads < most_heads ? sharing_heads : most_heads),
        count((sharing_heads + per_chunk - 1) / per_chunk) {}
  [[gnu::always_inline]] uint32_t heads(uint32_t chunk) const {
    const uint32_t left = sharing - chunk * per_chunk;
    return left < per_chunk ? left : per_chunk;
  }
};

// Scratch: queries, scores, and partial results of a tile and of all tiles.
[[gnu::always_inline]] inline uint32_t gqa_most_queries(const GqaArgs& args) {
  const size_t bytes = (kScoreStride + 3 * size_t{partial_floats(args.head_dim)}) * sizeof(float);
  const size_t fit = kKernelScratchBytes / bytes;
  return fit < 1 ? 1 : fit < kMostQueries ? static_cast<uint32_t>(fit) : kMostQueries;
}
[[gnu::always_inline]] inline HeadChunks gqa_chunks(const GqaArgs& args) {
  return HeadChunks(args.num_heads / args.num_kv_heads, gqa_most_queries(args));
}

// Places in the panels of a sequence up to a position, itself included. Blocks whose tokens do not fill their
// last panel leave places without a key.
[[gnu::always_inline]] inline uint32_t gqa_places(const GqaArgs& args, uint32_t position) {
  const uint32_t tokens = args.cache.tokens_per_block;
  const uint32_t places = (tokens + kPanelTokens - 1) / kPanelTokens * kPanelTokens;
  return position / tokens * places + position % tokens + 1;
}
[[gnu::always_inline]] inline uint32_t gqa_tiles(const GqaArgs& args, uint32_t position) {
  return (gqa_places(args, position) + kTileKeys - 1) / kTileKeys;
}

}  // namespace tandem
