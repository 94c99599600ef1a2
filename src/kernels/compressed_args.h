// Arguments of the kernels of DeepSeek-V4's attention: compression of tokens into entries, the indexer's
// choice, and attention over a window of keys and the chosen entries. Batch invariance as in kernel_args.h.
//
// Entry w of a sequence pools the tokens of the positions [w * ratio, (w + 1) * ratio), with `overlap` those
// of the window before as well, and is seen by the positions from (w + 1) * ratio - 1 on. Entries lie in
// blocks of tokens_per_block tokens, tokens_per_block / ratio entries each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/kernel_args.h"

namespace tandem {

// Rounding that the model saw in training, where keys and entries were to be stored in few bits. In place, on
// float32; with `narrow` values are bf16 before and after.
//   fp8           blocks of 64 values: e4m3 times the smallest power of two s with |x| <= 448 s, s >= 2^-22
//   hadamard_fp4  multiplied by the Hadamard matrix of that many values (Sylvester's order, times
//                 size^-1/2; a power of two), then in blocks of 32: e2m1 times the smallest power of two s
//                 with |x| <= 6 s
// A block with infinity or NaN stays as it is.
enum class TrainedRounding : uint8_t { none, fp8, hadamard_fp4 };

struct TrainedRoundingArgs {
  float* x = nullptr;  // [rows, heads, ...], the first `cols` values of each head
  size_t row_stride = 0, head_stride = 0;
  uint32_t rows = 0, heads = 0, cols = 0;
  TrainedRounding kind = TrainedRounding::none;
  bool narrow = false;
};

// Makes the entries that the rows complete (those with (position + 1) % ratio == 0; other rows do nothing):
// softmax over the pooled tokens of each channel's scores, the weighted sum of their keys, RMS norm, rotation
// of the last rope_dim values, rounding to the dtype of the cache. All of it float32; where entries are bf16
// the pooled sum is rounded to bf16 before its norm, as the model was trained.
struct CompressArgs {
  // What is pooled: of each token, `keys` and `scores` at their offsets, each `dim` values, or with `overlap`
  // 2 * dim: the first half for the window after the token's own, the second for its own. float32.
  std::span<const AttentionRow> pending_rows;  // [rows]
  KvCacheView pending;
  uint32_t pending_width = 0;  // values of a token
  uint32_t keys_offset = 0, scores_offset = 0;
  const float* position_bias = nullptr;  // [ratio, dim or 2 * dim], added to the scores
  // Where entries go; the same positions.
  std::span<const AttentionRow> entry_rows;  // [rows]
  KvCacheView entries;
  uint32_t entry_offset = 0;    // elements from a block's start to its first entry of this kind
  const float* norm = nullptr;  // [dim]
  float epsilon = 1e-6f;
  const float* cos_sin = nullptr;  // [rows, rope_dim] of the first pooled position of the row's own window
  uint32_t rope_dim = 0;           // interleaved pairs
  uint32_t ratio = 0, dim = 0;     // dim <= kMostEntryDim
  bool overlap = false;
  // Before they are stored; fp8: all but the rotated values.
  TrainedRounding rounding = TrainedRounding::none;
};
inline constexpr uint32_t kMostEntryDim = 4096;

// For the rows that see more than top_k entries: the top_k with the highest score
//   sum_h weights[r, h] * max(0, query[r, h] . key)
// as ascending entry numbers. Of equal scores the earlier entry is taken. Rows that see no more than top_k
// entries are left alone: they take all.
struct IndexSelectArgs {
  std::span<const AttentionRow> rows;
  KvCacheView entries;
  uint32_t key_offset = 0;  // elements from a block's start to the key of its first entry
  uint32_t ratio = 0;
  const float* query = nullptr;    // [rows, heads, dim]
  const float* weights = nullptr;  // [rows, heads]; factors above 0 that all heads share change no choice
  uint32_t heads = 0, dim = 0;     // heads <= kMostIndexHeads, dim <= kMostIndexDim
  uint32_t top_k = 0;              // <= kMostIndexTopK
  int32_t* selected = nullptr;     // [rows, top_k]
  const AttentionPlan* plan = nullptr;  // KernelRunner makes it
};
inline constexpr uint32_t kMostIndexHeads = 256, kMostIndexDim = 256, kMostIndexTopK = 16384;

// Positions [begin, end) of a sequence.
struct KeyRange {
  uint32_t begin = 0, end = 0;
};

// Attention of heads that share one vector a token as key and value, over the last `window` positions, the
// row's own included, or over the positions that `window_ranges` says, and over entries: those in `selected`
// where the row sees more than top_k of them, all that it sees otherwise. A sink takes part in the softmax's
// denominator alone.
struct CompressedAttentionArgs {
  std::span<const AttentionRow> window_rows;
  KvCacheView window_cache;                 // [head_dim] a token
  uint32_t window = 0;                      // positions
  std::span<const KeyRange> window_ranges;  // [rows], or empty; may reach beyond the row's own position,
                                            // and none is empty
  std::span<const AttentionRow> entry_rows;
  KvCacheView entries;  // of the same dtype; ratio 0: none
  uint32_t ratio = 0;
  const int32_t* selected = nullptr;  // [rows, top_k]; null: every row takes all
  uint32_t top_k = 0;
  const float* query = nullptr;  // [rows, num_heads, head_dim]
  size_t query_stride = 0;       // elements between rows
  const float* sinks = nullptr;  // [num_heads]
  ActivationOut out;             // [rows, num_heads * head_dim]
  uint32_t num_heads = 0, head_dim = 0;
  float scale = 1.0f;
  const AttentionPlan* plan = nullptr;  // KernelRunner makes it
};

}  // namespace tandem
