// The tiles and tasks of the attention kernels, as planner and kernels both see them. Everything here is
// always inlined: it is compiled under several instruction sets.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/attention_plan.h"
#include "kernels/compressed_args.h"
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

// Of a cache of codes: panels that are decoded at once, in bf16. Four heads of 128 take half of an L1 cache.
inline constexpr uint32_t kDecodedPanels = 4;
// Of one panel, and of all with the scales of a tile's keys and values as float32.
[[gnu::always_inline]] inline size_t decoded_panel_bytes(uint32_t head_dim) {
  return size_t{kPanelTokens} * ((head_dim + 15) / 16 * 16) * 2;
}
[[gnu::always_inline]] inline size_t gqa_decoded_bytes(const GqaArgs& args) {
  if (args.cache.dtype != DType::f8_e4m3) return 0;
  return kDecodedPanels * decoded_panel_bytes(args.head_dim) + 2 * size_t{kTileKeys} * sizeof(float);
}
// Scratch: what is decoded, queries, scores, and partial results of a tile and of all tiles.
[[gnu::always_inline]] inline uint32_t gqa_most_queries(const GqaArgs& args) {
  const size_t bytes = (kScoreStride + 3 * size_t{partial_floats(args.head_dim)}) * sizeof(float);
  const size_t fit = (kKernelScratchBytes - gqa_decoded_bytes(args)) / bytes;
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
// The place of the first key that a row at a position attends to, and its tile.
[[gnu::always_inline]] inline uint32_t gqa_first_place(const GqaArgs& args, uint32_t position) {
  if (args.window == 0 || position < args.window) return 0;
  return gqa_places(args, position - args.window + 1) - 1;
}
[[gnu::always_inline]] inline uint32_t gqa_first_tile(const GqaArgs& args, uint32_t position) {
  return gqa_first_place(args, position) / kTileKeys;
}

// MLA and DeepSeek-V4: keys that are values too, and longer. With 64 queries of 512 + 64 dimensions in bf16 a
// tile, its queries, scores and sums take 0.7 MiB.
inline constexpr uint32_t kLatentTileKeys = 256;

// Sums are kept for blocks of 32 dimensions.
[[gnu::always_inline]] inline uint32_t latent_padded_dim(uint32_t value_dim) {
  return (value_dim + 31) / 32 * 32;
}
// Scratch: for vectors of 16 queries their values and the scores of a tile, and two partial results each.
// `decoded`: bytes of it that are taken.
[[gnu::always_inline]] inline uint32_t latent_most_queries(uint32_t key_dim, uint32_t value_dim, DType dtype,
                                                           size_t decoded = 0) {
  const size_t columns = dtype == DType::f32 ? key_dim : (key_dim + 1) / 2;
  const size_t bytes =
      (columns + kLatentTileKeys + 2 * (size_t{latent_padded_dim(value_dim)} + 16)) * sizeof(float);
  const size_t fit = (kKernelScratchBytes - decoded) / bytes / 16 * 16;
  return fit < 16 ? 1 : fit < kMostQueries ? static_cast<uint32_t>(fit) : kMostQueries;
}
[[gnu::always_inline]] inline uint32_t latent_tiles(uint32_t keys) {
  return (keys + kLatentTileKeys - 1) / kLatentTileKeys;
}
[[gnu::always_inline]] inline PagedKvLayout mla_layout(const MlaArgs& args) {
  return {args.cache.dtype, args.cache.tokens_per_block, 0, args.latent_dim + args.rope_dim, args.rope_dim};
}
// Of codes: a tile's keys in bf16, and their scales. 290 KiB for 512 + 64 dimensions.
[[gnu::always_inline]] inline size_t latent_decoded_row(const PagedKvLayout& layout) {
  return (layout.latent_codes() + layout.rope_dim) * 2;
}
[[gnu::always_inline]] inline size_t mla_decoded_bytes(const MlaArgs& args) {
  if (args.cache.dtype != DType::f8_e4m3) return 0;
  return kLatentTileKeys * (latent_decoded_row(mla_layout(args)) + sizeof(float));
}
[[gnu::always_inline]] inline uint32_t mla_most_queries(const MlaArgs& args) {
  return latent_most_queries(args.latent_dim + args.rope_dim, args.latent_dim, args.cache.dtype,
                             mla_decoded_bytes(args));
}
[[gnu::always_inline]] inline HeadChunks mla_chunks(const MlaArgs& args) {
  return HeadChunks(args.num_heads, mla_most_queries(args));
}

// Each head has keys of its own.
[[gnu::always_inline]] inline HeadChunks expanded_chunks(const ExpandedMlaArgs& args) {
  return HeadChunks(args.num_heads, 1);
}

// Rows have entries of their own, so that a task has one row. With few rows its heads are shared out.
[[gnu::always_inline]] inline HeadChunks compressed_chunks(const CompressedAttentionArgs& args) {
  constexpr uint32_t kFewRows = 4, kHeadsOfFew = 32;
  const uint32_t most = latent_most_queries(args.head_dim, args.head_dim, args.window_cache.dtype);
  return HeadChunks(args.num_heads,
                    args.window_rows.size() < kFewRows && most > kHeadsOfFew ? kHeadsOfFew : most);
}

// The keys of a row: positions [first, first + window), then `entries` entries, those in `selected` or all.
struct CompressedKeys {
  uint32_t first, window, entries;
  const int32_t* selected;
};
[[gnu::always_inline]] inline CompressedKeys compressed_keys(const CompressedAttentionArgs& args,
                                                             size_t row) {
  CompressedKeys keys;
  const uint32_t seen = args.window_rows[row].position + 1;
  if (args.window_ranges.empty()) {
    keys.first = seen < args.window ? 0 : seen - args.window;
    keys.window = seen - keys.first;
  } else {
    keys.first = args.window_ranges[row].begin;
    keys.window = args.window_ranges[row].end - keys.first;
  }
  keys.entries = args.ratio == 0 ? 0 : seen / args.ratio;
  keys.selected = nullptr;
  if (args.selected != nullptr && keys.entries > args.top_k) {
    keys.entries = args.top_k;
    keys.selected = args.selected + row * args.top_k;
  }
  return keys;
}

// Tiles of entries that a row scores: none where it takes all.
[[gnu::always_inline]] inline uint32_t index_tiles(const IndexSelectArgs& args, size_t row) {
  const uint32_t visible = (args.rows[row].position + 1) / args.ratio;
  return visible <= args.top_k ? 0 : latent_tiles(visible);
}

}  // namespace tandem
