// mla: one online softmax over the keys of a row, in tiles of kKeyTile absolute positions. What a row
// computes depends on its own position and cache alone, so every chunking of a prompt gives the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include "kernels/isa/isa_namespace.h"
#include "kernels/isa/output.h"
#include "kernels/kernel_args.h"
#include "kernels/kernel_table.h"
#include "kernels/paged_kv_layout.h"

namespace tandem::TANDEM_ISA_NAMESPACE {

inline constexpr uint32_t kKeyTile = 64;
// Heads that share one pass over the keys; one vector holds their maxima.
inline constexpr uint32_t kMostHeads = 16;

struct F32Cache {
  using Element = float;
  TANDEM_INLINE static Vec read(const float* p) { return load(p); }
  TANDEM_INLINE static Vec read_partial(const float* p, uint32_t n) { return load_partial(p, n); }
};
// Reading 32 elements as the even and the odd ones would halve the work of widening; measured, it gains 1 to
// 3 %, which does not pay for queries and sums in another order.
struct Bf16Cache {
  using Element = uint16_t;
  TANDEM_INLINE static Vec read(const uint16_t* p) { return load_bf16(p); }
  TANDEM_INLINE static Vec read_partial(const uint16_t* p, uint32_t n) { return load_bf16_partial(p, n); }
};

TANDEM_INLINE uint32_t padded(uint32_t dim) {
  return (dim + 15) / 16 * 16;
}

// Where the vectors of a tile of positions lie. Up to the next multiple of 16 the lists repeat their last
// entry, so that register tiles of keys are whole: those scores are not used. Blocks are smaller than what
// the processor's prefetchers need to get going, so what comes next is asked for by address.
template <class Cache>
struct KeyTile {
  uint32_t count = 0;
  const typename Cache::Element* keys[kKeyTile];
  const typename Cache::Element* values[kKeyTile];
};

// One row, some heads that share keys and values.
struct HeadsState {
  uint32_t heads;
  uint32_t key_dim, value_dim;
  float scale;
  float* query;   // [heads, padded(key_dim)], zero beyond key_dim
  float* sums;    // [heads, padded(value_dim)]
  float* scores;  // [heads, kKeyTile]
  alignas(64) float maximum[kMostHeads];
  alignas(64) float correction[kMostHeads];
  alignas(64) float denominator[kMostHeads];
};

// Dot products of Heads queries and Keys keys; Heads * Keys <= 16. Asks for the rows of `ahead` meanwhile (or
// null).
template <class Cache, int Heads, int Keys>
TANDEM_INLINE void score_tile(const float* query, size_t query_stride,
                              const typename Cache::Element* const* keys, uint32_t dim,
                              const typename Cache::Element* const* ahead, float* scores) {
  Vec sums[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) sums[i] = zero();
  uint32_t d = 0;
  for (; d + 16 <= dim; d += 16) {
    if (ahead != nullptr && d * sizeof(typename Cache::Element) % 64 == 0) {
#pragma GCC unroll 16
      for (int k = 0; k < Keys; ++k) prefetch(ahead[k] + d);
    }
    Vec q[Heads];
#pragma GCC unroll 4
    for (int h = 0; h < Heads; ++h) q[h] = load(query + h * query_stride + d);
#pragma GCC unroll 16
    for (int k = 0; k < Keys; ++k) {
      const Vec key = Cache::read(keys[k] + d);
#pragma GCC unroll 4
      for (int h = 0; h < Heads; ++h) sums[h * Keys + k] = fma(q[h], key, sums[h * Keys + k]);
    }
  }
  if (d < dim) {
#pragma GCC unroll 16
    for (int k = 0; k < Keys; ++k) {
      const Vec key = Cache::read_partial(keys[k] + d, dim - d);
#pragma GCC unroll 4
      for (int h = 0; h < Heads; ++h) {
        sums[h * Keys + k] = fma(load(query + h * query_stride + d), key, sums[h * Keys + k]);
      }
    }
  }
  alignas(64) float totals[16];
  store(totals, reduce_add_16(sums));
  for (int h = 0; h < Heads; ++h) {
    for (int k = 0; k < Keys; ++k) scores[h * kKeyTile + k] = totals[h * Keys + k];
  }
}

// The part of the next tile that the heads from `first` fetch while they compute: every n-th piece for n
// groups of heads, so that requests are spread evenly over a tile's work and do not exceed what a core may
// have in flight.
struct FetchPart {
  uint32_t part, parts, count;
  TANDEM_INLINE FetchPart(const HeadsState& state, uint32_t first, uint32_t next_count)
      : part(first / 4), parts((state.heads + 3) / 4), count(next_count) {}
  TANDEM_INLINE bool contains(uint32_t k, uint32_t piece) const {
    return k < count && k / piece % parts == part;
  }
};

template <class Cache, int Heads, int Keys>
void score_heads(const HeadsState& state, uint32_t first, const KeyTile<Cache>& tile,
                 const KeyTile<Cache>& next) {
  const size_t stride = padded(state.key_dim);
  const FetchPart fetch(state, first, next.count);
  for (uint32_t k = 0; k < tile.count; k += Keys) {
    score_tile<Cache, Heads, Keys>(state.query + first * stride, stride, tile.keys + k, state.key_dim,
                                   fetch.contains(k, Keys) ? next.keys + k : nullptr,
                                   state.scores + first * kKeyTile + k);
  }
}

// sums = sums * correction + scores * values for Heads heads and Chunks vectors of the value, from column d.
// Asks for the same columns of the next tile's values meanwhile.
template <class Cache, int Heads, int Chunks>
TANDEM_INLINE void value_tile(const HeadsState& state, uint32_t first, const KeyTile<Cache>& tile,
                              const KeyTile<Cache>& next, uint32_t d, uint32_t lanes) {
  constexpr uint32_t kLineElements = 64 / sizeof(typename Cache::Element);
  const size_t stride = padded(state.value_dim);
  const float* scores = state.scores + first * kKeyTile;
  float* out = state.sums + first * stride + d;
  Vec sums[Heads][Chunks];
#pragma GCC unroll 4
  for (int h = 0; h < Heads; ++h) {
#pragma GCC unroll 4
    for (int c = 0; c < Chunks; ++c) {
      sums[h][c] = mul(load(out + h * stride + c * 16), set1(state.correction[first + h]));
    }
  }
  FetchPart fetch(state, first, next.count);
  if (tile.values[0] == tile.keys[0]) fetch.count = 0;  // MLA: they are the keys
  for (uint32_t k = 0; k < tile.count; ++k) {
    if (fetch.contains(k, 1)) {
#pragma GCC unroll 4
      for (uint32_t c = 0; c < Chunks * 16; c += kLineElements) prefetch(next.values[k] + d + c);
    }
    Vec value[Chunks];
#pragma GCC unroll 4
    for (int c = 0; c < Chunks; ++c) {
      const typename Cache::Element* p = tile.values[k] + d + c * 16;
      value[c] = lanes == 16 ? Cache::read(p) : Cache::read_partial(p, lanes);
    }
#pragma GCC unroll 4
    for (int h = 0; h < Heads; ++h) {
      const Vec p = set1(scores[h * kKeyTile + k]);
#pragma GCC unroll 4
      for (int c = 0; c < Chunks; ++c) sums[h][c] = fma(p, value[c], sums[h][c]);
    }
  }
#pragma GCC unroll 4
  for (int h = 0; h < Heads; ++h) {
#pragma GCC unroll 4
    for (int c = 0; c < Chunks; ++c) store(out + h * stride + c * 16, sums[h][c]);
  }
}

template <class Cache, int Heads>
void value_heads(const HeadsState& state, uint32_t first, const KeyTile<Cache>& tile,
                 const KeyTile<Cache>& next) {
  uint32_t d = 0;
  for (; d + 64 <= state.value_dim; d += 64) value_tile<Cache, Heads, 4>(state, first, tile, next, d, 16);
  for (; d + 16 <= state.value_dim; d += 16) value_tile<Cache, Heads, 1>(state, first, tile, next, d, 16);
  if (d < state.value_dim) value_tile<Cache, Heads, 1>(state, first, tile, next, d, state.value_dim - d);
}

// Turns the scores of `count` keys into weights, and sets the correction of what was summed before.
TANDEM_INLINE void soften(HeadsState& state, uint32_t count) {
  const Vec minus_infinity = set1(-std::numeric_limits<float>::infinity());
  const uint32_t width = padded(count);
  alignas(64) float previous[kMostHeads];
  for (uint32_t h = 0; h < kMostHeads; ++h) previous[h] = state.maximum[h];
  for (uint32_t h = 0; h < state.heads; ++h) {
    float* scores = state.scores + h * kKeyTile;
    for (uint32_t k = 0; k < width; k += 16) store(scores + k, mul(load(scores + k), set1(state.scale)));
    // Keys that do not exist weigh nothing.
    for (uint32_t k = count; k < width; ++k) scores[k] = -std::numeric_limits<float>::infinity();
    Vec most = minus_infinity;
    for (uint32_t k = 0; k < width; k += 16) most = max(most, load(scores + k));
    const float tile_maximum = reduce_max(most);
    if (tile_maximum > state.maximum[h]) state.maximum[h] = tile_maximum;
  }
  store(state.correction, exp(sub(load(previous), load(state.maximum))));
  for (uint32_t h = 0; h < state.heads; ++h) {
    float* scores = state.scores + h * kKeyTile;
    const Vec maximum = set1(state.maximum[h]);
    Vec sum = zero();
    for (uint32_t k = 0; k < width; k += 16) {
      const Vec weight = exp(sub(load(scores + k), maximum));
      store(scores + k, weight);
      sum = add(sum, weight);
    }
    state.denominator[h] = state.denominator[h] * state.correction[h] + reduce_add(sum);
  }
}

// All keys of one row. `locate(position, key, value)` gives the two vectors of a position.
template <class Cache, class Locate>
TANDEM_INLINE void attend(HeadsState& state, uint32_t positions, const Locate& locate) {
  KeyTile<Cache> tiles[2];
  const auto fill = [&](KeyTile<Cache>& tile, uint32_t begin) {
    tile.count = positions - begin < kKeyTile ? positions - begin : kKeyTile;
    for (uint32_t k = 0; k < tile.count; ++k) locate(begin + k, tile.keys[k], tile.values[k]);
    for (uint32_t k = tile.count; k < padded(tile.count); ++k) {
      tile.keys[k] = tile.keys[tile.count - 1];
      tile.values[k] = tile.values[tile.count - 1];
    }
  };
  fill(tiles[0], 0);
  for (uint32_t begin = 0, turn = 0; begin < positions; begin += kKeyTile, turn ^= 1) {
    const KeyTile<Cache>& tile = tiles[turn];
    KeyTile<Cache>& next = tiles[turn ^ 1];
    next.count = 0;
    if (positions - begin > kKeyTile) fill(next, begin + kKeyTile);
    uint32_t h = 0;
    for (; h + 4 <= state.heads; h += 4) score_heads<Cache, 4, 4>(state, h, tile, next);
    for (; h + 2 <= state.heads; h += 2) score_heads<Cache, 2, 8>(state, h, tile, next);
    if (h < state.heads) score_heads<Cache, 1, 16>(state, h, tile, next);
    soften(state, tile.count);
    h = 0;
    for (; h + 4 <= state.heads; h += 4) value_heads<Cache, 4>(state, h, tile, next);
    for (; h + 2 <= state.heads; h += 2) value_heads<Cache, 2>(state, h, tile, next);
    if (h < state.heads) value_heads<Cache, 1>(state, h, tile, next);
  }
}

// Heads of one task: as many as share their keys, at most kMostHeads, fewer when huge heads would not fit the
// scratch.
TANDEM_INLINE uint32_t heads_per_task(uint32_t sharing, uint32_t key_dim, uint32_t value_dim) {
  const size_t head_bytes = (size_t{padded(key_dim)} + padded(value_dim) + kKeyTile) * sizeof(float);
  const size_t fit = kKernelScratchBytes / head_bytes;
  uint32_t heads = sharing < kMostHeads ? sharing : kMostHeads;
  if (heads > fit) heads = static_cast<uint32_t>(fit);
  return heads < 1 ? 1 : heads;
}

TANDEM_INLINE void init_state(HeadsState& state, uint32_t heads, uint32_t key_dim, uint32_t value_dim,
                              float scale, std::byte* scratch) {
  state.heads = heads;
  state.key_dim = key_dim;
  state.value_dim = value_dim;
  state.scale = scale;
  state.query = reinterpret_cast<float*>(scratch);
  state.sums = state.query + size_t{heads} * padded(key_dim);
  state.scores = state.sums + size_t{heads} * padded(value_dim);
  const size_t floats = size_t{heads} * (padded(key_dim) + padded(value_dim));
  for (size_t i = 0; i < floats; i += 16) store(state.query + i, zero());
  store(state.maximum, set1(-std::numeric_limits<float>::infinity()));
  store(state.denominator, zero());
}

TANDEM_INLINE void copy_vector(float* to, const float* from, uint32_t n) {
  for (uint32_t i = 0; i < n; ++i) to[i] = from[i];
}

TANDEM_INLINE void write_heads(const HeadsState& state, const ActivationOut& out, size_t offset) {
  for (uint32_t h = 0; h < state.heads; ++h) {
    const float* sums = state.sums + size_t{h} * padded(state.value_dim);
    const Vec denominator = set1(state.denominator[h]);
    for (uint32_t d = 0; d < state.value_dim; d += 16) {
      write_lanes(out.dtype, out.data, offset + size_t{h} * state.value_dim + d,
                  div(load(sums + d), denominator), lanes_at(d, state.value_dim));
    }
  }
}

template <class Cache>
void mla_row(const MlaArgs& args, size_t row, HeadsState& state) {
  const AttentionRow& query = args.rows[row];
  const uint32_t width = args.latent_dim + args.rope_dim;
  attend<Cache>(
      state, query.position + 1,
      [&](uint32_t position, const typename Cache::Element*& key, const typename Cache::Element*& value) {
        const uint32_t block = position / args.cache.tokens_per_block;
        const uint32_t token = position - block * args.cache.tokens_per_block;
        const auto* base = reinterpret_cast<const typename Cache::Element*>(
            args.cache.base + static_cast<size_t>(query.block_table[block]) * args.cache.block_bytes);
        key = value = base + size_t{token} * width;
      });
}

struct HeadTasks {
  uint32_t sharing, per_task, chunks;
  TANDEM_INLINE HeadTasks(uint32_t sharing_heads, uint32_t key_dim, uint32_t value_dim)
      : sharing(sharing_heads),
        per_task(heads_per_task(sharing_heads, key_dim, value_dim)),
        chunks((sharing_heads + per_task - 1) / per_task) {}
  TANDEM_INLINE uint32_t count(uint32_t chunk) const {
    const uint32_t left = sharing - chunk * per_task;
    return left < per_task ? left : per_task;
  }
};

inline size_t mla_tasks(const MlaArgs& args) {
  if (args.num_heads == 0) return 0;
  return args.rows.size() *
         HeadTasks(args.num_heads, args.latent_dim + args.rope_dim, args.latent_dim).chunks;
}

inline void mla_run(const MlaArgs& args, size_t task, std::byte* scratch) {
  const uint32_t key_dim = args.latent_dim + args.rope_dim;
  const HeadTasks heads(args.num_heads, key_dim, args.latent_dim);
  const size_t row = task % args.rows.size();
  const uint32_t chunk = static_cast<uint32_t>(task / args.rows.size());
  const uint32_t first = chunk * heads.per_task;
  HeadsState state;
  init_state(state, heads.count(chunk), key_dim, args.latent_dim, args.scale, scratch);
  for (uint32_t h = 0; h < state.heads; ++h) {
    float* query = state.query + size_t{h} * padded(key_dim);
    copy_vector(query,
                args.query_latent + row * args.query_latent_stride + size_t{first + h} * args.latent_dim,
                args.latent_dim);
    copy_vector(
        query + args.latent_dim,
        args.query_rope + row * args.query_rope_stride + size_t{first + h} * args.query_rope_head_stride,
        args.rope_dim);
  }
  if (args.cache.dtype == DType::f32) {
    mla_row<F32Cache>(args, row, state);
  } else {
    mla_row<Bf16Cache>(args, row, state);
  }
  write_heads(state, args.out, row * args.out.row_stride + size_t{first} * args.latent_dim);
}

}  // namespace tandem::TANDEM_ISA_NAMESPACE
