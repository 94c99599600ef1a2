// What follows from a layer's compression ratio in DeepSeek-V4's attention. Ratio 0: a window of keys, no
// entries.
#pragma once

#include <cstdint>

namespace tandem {

// Compressed sparse attention (CSA): an entry pools two windows of tokens, the one before with the first half
// of the projection and its own with the second; an indexer with keys of its own chooses among the entries.
inline constexpr uint32_t kSparseRatio = 4;
// Heavily compressed attention (HCA): an entry pools one window of tokens, and every entry is seen.
inline constexpr uint32_t kHeavyRatio = 128;

inline bool has_indexer(uint32_t ratio) {
  return ratio == kSparseRatio;
}
// Columns of the keys, and of the scores, that a compressor takes from a token for entries of `dim` values.
inline uint32_t compressor_width(uint32_t ratio, uint32_t dim) {
  return ratio == kSparseRatio ? 2 * dim : dim;
}

}  // namespace tandem
