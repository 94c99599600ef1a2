// Slices: how an expert's intermediate rows may be cut. An expert is down (silu(gate x) * up x), a sum over
// its intermediate rows; the rows [begin, end) of gate and up with the same columns of down are a smaller
// MLP, and the outputs of disjoint slices add up to the expert's. Pure functions; any thread.
//
// Cuts lie on multiples of a granule that follows from the model's shape alone. It is also the contribution
// of deterministic sums: each granule's part is rounded to the grid by itself, so that no way to slice
// changes a bit.
#pragma once

#include <algorithm>
#include <cstdint>

namespace tandem {

// Intermediate rows [begin, end) of every expert that is meant; to the last one unless said otherwise.
struct RowRange {
  uint32_t begin = 0, end = UINT32_MAX;
  bool operator==(const RowRange&) const = default;

  RowRange within(uint32_t intermediate_size) const {
    return {std::min(begin, intermediate_size), std::min(end, intermediate_size)};
  }
  uint32_t size() const { return end - begin; }
};

// 128 rows, or as many fewer as leave an expert at least four granules: the largest power of two for which it
// has four, and 2 at the least. 128 are whole panels of the packed weights (16 rows, groups of 64), whole
// blocks of block-scaled fp8 (128) and fp4 (32), and a row of down is read in runs of 256 bytes. Small models
// get less, so that they can be cut for four ranks like large ones; 2 is a pair of columns, which packed bf16
// keeps together.
constexpr uint32_t slice_granule(uint32_t intermediate_size) {
  constexpr uint32_t kLargest = 128, kSmallest = 2, kGranules = 4;
  uint32_t granule = kLargest;
  while (granule > kSmallest && granule * kGranules > intermediate_size) granule /= 2;
  return granule;
}

// Into how many slices an expert can be cut. The last granule may be shorter.
constexpr uint32_t num_granules(uint32_t intermediate_size) {
  const uint32_t granule = slice_granule(intermediate_size);
  return (intermediate_size + granule - 1) / granule;
}

// Slice `index` of `slices` (at most num_granules): contiguous, all slices together every row once, sizes
// differ by at most one granule.
constexpr RowRange slice_rows(uint32_t intermediate_size, uint32_t index, uint32_t slices) {
  const auto bound = [&](uint64_t i) {
    const uint64_t granules = i * num_granules(intermediate_size) / slices;
    return static_cast<uint32_t>(
        std::min<uint64_t>(intermediate_size, granules * slice_granule(intermediate_size)));
  };
  return {bound(index), bound(uint64_t{index} + 1)};
}

// Whether `rows` is not empty, inside the expert, and cut on granules.
constexpr bool is_slice(uint32_t intermediate_size, RowRange rows) {
  const uint32_t granule = slice_granule(intermediate_size);
  return rows.begin < rows.end && rows.end <= intermediate_size && rows.begin % granule == 0 &&
         (rows.end % granule == 0 || rows.end == intermediate_size);
}

}  // namespace tandem
