// What the attention kernels share: the softmax of a tile of keys, and partial results.
//
// A partial result (of one query over one tile, or over all so far) is padded_dim sums, then the largest
// score and the sum of the weights. Scores are in units of log2: weights are 2^(score - largest).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "kernels/attention_shape.h"
#include "kernels/isa/isa_namespace.h"
#include "kernels/isa/output.h"
#include "kernels/isa/product.h"
#include "kernels/isa/simd_math.h"

namespace tandem::TANDEM_ISA_NAMESPACE {

inline constexpr float kLog2E = 1.44269504f;

// What kernels of a cache's dtype do with its elements. Tile: what a tile of keys or values has when it is
// multiplied; of codes (kCoded) that is made tile by tile. store_weights stores 16 weights as factors of a
// product and returns what they were rounded to.
struct F32Keys {
  using Tile = F32Keys;
  using Product = F32Product;
  using Element = float;
  static constexpr bool kCoded = false;
  static constexpr uint32_t kPair = 1;
  TANDEM_INLINE static Vec weigh(Vec x) { return exp2_below(x); }
  TANDEM_INLINE static Vec store_weights(float* p, Vec v) {
    store(p, v);
    return v;
  }
  TANDEM_INLINE static void store_query(float* p, Vec v) { store(p, v); }
  TANDEM_INLINE static Vec first_of_pairs(const std::byte* line) { return Product::weights(line); }
  // 32 dimensions of kPair tokens as factors.
  TANDEM_INLINE static void interleave(const std::byte* token, const std::byte*, Vec (&w)[2]) {
    w[0] = load(reinterpret_cast<const float*>(token));
    w[1] = load(reinterpret_cast<const float*>(token) + 16);
  }
  // Of 32 sums: from the order of interleave's factors to that of the dimensions.
  TANDEM_INLINE static void restore_order(float*) {}
};
struct Bf16Keys {
  using Tile = Bf16Keys;
  using Product = Bf16Product;
  using Element = uint16_t;
  static constexpr bool kCoded = false;
  static constexpr uint32_t kPair = 2;
  TANDEM_INLINE static Vec weigh(Vec x) { return exp2_below_bf16(x); }
  TANDEM_INLINE static Vec store_weights(uint16_t* p, Vec v) { return store_rounded(p, v); }
  TANDEM_INLINE static void store_query(uint16_t* p, Vec v) { store_bf16(p, v); }
  // With zeros for the second of each pair.
  TANDEM_INLINE static Pairs first_of_pairs(const std::byte* line) { return load_even_pairs(line); }
  TANDEM_INLINE static void interleave(const std::byte* first, const std::byte* second, Pairs (&w)[2]) {
    interleave_pairs(reinterpret_cast<const uint16_t*>(first), reinterpret_cast<const uint16_t*>(second), w);
  }
  TANDEM_INLINE static void restore_order(float* sums) { restore_pair_order(sums); }
};

// e4m3 codes, decoded to bf16 without their scales: a key's is multiplied with its scores, a value's with its
// weights, which is exact for powers of two.
struct CodedKeys : Bf16Keys {
  static constexpr bool kCoded = true;
};

// A line of 64 codes as two of bf16, `gap` bytes apart.
TANDEM_INLINE void decode_line(const std::byte* codes, std::byte* to, size_t gap) {
  const Codes line = load_codes(codes);
  store_bits(to, e4m3_bits<0>(line));
  store_bits(to + gap, e4m3_bits<1>(line));
}
// The scale of a vector of them; 255 is NaN.
TANDEM_INLINE float kv_scale(uint8_t exponent) {
  const uint32_t bits = uint32_t{exponent} << 23 | (exponent == 255 ? 1u << 22 : 0);
  float scale;
  std::memcpy(&scale, &bits, sizeof bits);
  return scale;
}
TANDEM_INLINE void load_kv_scales(const std::byte* from, float* to) {
  for (uint32_t i = 0; i < kPanelTokens; ++i) to[i] = kv_scale(static_cast<uint8_t>(from[i]));
}

// `other` in the lanes from `lanes` on.
TANDEM_INLINE Vec first_lanes_or(Vec v, uint32_t lanes, float other) {
  alignas(64) float all[16];
  store(all, v);
  for (uint32_t i = lanes; i < 16; ++i) all[i] = other;
  return load(all);
}
// `other` in the lanes before `lanes`.
TANDEM_INLINE Vec later_lanes_or(Vec v, uint32_t lanes, float other) {
  alignas(64) float all[16];
  store(all, v);
  for (uint32_t i = 0; i < lanes && i < 16; ++i) all[i] = other;
  return load(all);
}

// Turns the scores of one query, `panels` vectors of which panel i has lanes(i) keys, into weights in place,
// as elements of the cache's dtype, 0 where there is no key. Writes the maximum and the denominator. Asks for
// kSoftenAhead bytes a vector from `ahead` on meanwhile, or null. Of codes: scales [2][kTileKeys] of the keys
// and values; the weights are multiplied with theirs, the denominator is not. kBounded: the query's own keys
// begin at place `begin` of the vectors; those before it have the weight 0.
template <class Keys>
inline constexpr uint32_t kSoftenAhead = Keys::kCoded ? kLineBytes : 2 * kLineBytes;
template <class Keys, bool kBounded, class Lanes>
TANDEM_INLINE void soften_tile(float* scores, uint32_t panels, const Lanes& lanes,
                               [[maybe_unused]] uint32_t begin, float scale_log2, const float* scales,
                               const std::byte* ahead, float* partial_end) {
  constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
  const Vec scale = set1(scale_log2);
  const auto score_of = [&](uint32_t i) TANDEM_LAMBDA_INLINE {
    const Vec score = load(scores + i * 16);
    return Keys::kCoded ? mul(score, load(scales + i * 16)) : score;
  };
  const auto own = [&](Vec v, uint32_t i, float other) TANDEM_LAMBDA_INLINE {
    if constexpr (kBounded) {
      if (begin > i * 16) [[unlikely]]
        return later_lanes_or(v, begin - i * 16, other);
    }
    return v;
  };
  Vec most = set1(kMinusInfinity);
  for (uint32_t i = 0; i < panels; ++i) {
    const uint32_t n = lanes(i);
    Vec score = own(mul(score_of(i), scale), i, kMinusInfinity);
    if (n < 16) [[unlikely]]
      score = first_lanes_or(score, n, kMinusInfinity);
    most = max(score, most);
  }
  const float maximum = reduce_max(most);
  const Vec minus_maximum = set1(-maximum);
  auto* weights = reinterpret_cast<typename Keys::Element*>(scores);
  Vec sum = zero();
  for (uint32_t i = 0; i < panels; ++i) {
    const uint32_t n = lanes(i);
    if (ahead != nullptr) {
      const std::byte* next = ahead + size_t{i} * kSoftenAhead<Keys>;
      prefetch(next);
      if (!Keys::kCoded) prefetch(next + kLineBytes);
    }
    Vec weight = own(Keys::weigh(fma(score_of(i), scale, minus_maximum)), i, 0.0f);
    if (n < 16) [[unlikely]]
      weight = first_lanes_or(weight, n, 0.0f);
    weight = Keys::store_weights(weights + i * 16, weight);
    sum = add(sum, weight);
    if constexpr (Keys::kCoded) {
      weight = mul(weight, load(scales + kTileKeys + i * 16));
      if (n < 16) [[unlikely]]
        weight = first_lanes_or(weight, n, 0.0f);  // a scale that was never written may be NaN
      Keys::store_weights(weights + i * 16, weight);
    }
  }
  partial_end[0] = maximum;
  partial_end[1] = reduce_add(sum);
}

// total = total and part, or part alone where it is the first.
inline void fold_partial(float* total, const float* part, uint32_t padded_dim, bool first) {
  if (first) {
    for (uint32_t d = 0; d < padded_dim + 16; d += 16) store(total + d, load(part + d));
    return;
  }
  const float* part_end = part + padded_dim;
  float* total_end = total + padded_dim;
  const Vec here = set1(total_end[0]), there = set1(part_end[0]);
  const Vec maximum = max(here, there);
  const Vec keep = exp2_below(sub(here, maximum)), take = exp2_below(sub(there, maximum));
  for (uint32_t d = 0; d < padded_dim; d += 16)
    store(total + d, fma(load(part + d), take, mul(load(total + d), keep)));
  alignas(64) float ends[2][16];
  store(ends[0], maximum);
  store(ends[1], fma(set1(part_end[1]), take, mul(set1(total_end[1]), keep)));
  total_end[0] = ends[0][0];
  total_end[1] = ends[1][0];
}

TANDEM_INLINE void write_total(const float* total, uint32_t padded_dim, const ActivationOut& out,
                               size_t offset, uint32_t dim) {
  const Vec denominator = set1(total[padded_dim + 1]);
  for (uint32_t d = 0; d < dim; d += 16)
    write_lanes(out.dtype, out.data, offset + d, div(load(total + d), denominator), lanes_at(d, dim));
}

// each(row, height, t, of): tile t of `of` of nearly equal height.
template <class Each>
TANDEM_INLINE void for_row_tiles(uint32_t count, const Each& each) {
  const uint32_t tiles = (count + kTileRows - 1) / kTileRows;
  uint32_t row = 0;
  for (uint32_t t = 0; t < tiles; ++t) {
    const uint32_t height = (count - row + (tiles - t) - 1) / (tiles - t);
    each(row, height, t, tiles);
    row += height;
  }
}

template <class Args>
size_t planned_tasks(const Args& args) {
  return args.plan->tasks;
}
template <class Args>
size_t planned_folds(const Args& args) {
  return args.plan->folds;
}

}  // namespace tandem::TANDEM_ISA_NAMESPACE
