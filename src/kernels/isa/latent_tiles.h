// The register tiles of latent.h: scores of queries against latents in rows, and sums of their values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/attention_shape.h"
#include "kernels/isa/attention_tile.h"
#include "kernels/isa/isa_namespace.h"
#include "kernels/isa/product.h"

namespace tandem::TANDEM_ISA_NAMESPACE {

// Keys that a register tile of scores has; with two vectors of queries that is 16 accumulators.
inline constexpr int kLatentKeys = kBf16Accumulators >= 16 ? 8 : kBf16Accumulators;
// Rows (queries) that a register tile of sums may have, beside two vectors of dimensions.
inline constexpr int kLatentRows = kBf16Accumulators >= 24   ? 12
                                   : kBf16Accumulators >= 16 ? 8
                                   : kBf16Accumulators >= 4  ? 2
                                                             : 1;
// Dimensions of a register tile of sums.
inline constexpr uint32_t kLatentDims = 32;

struct LatentTile {
  uint32_t count = 0;                          // keys
  const std::byte* keys[kLatentTileKeys + 1];  // beyond count: the last one again, up to a register tile
  uint8_t scales[kLatentTileKeys];             // of codes
};

// scores[key, q] = query q . key for 16 * Vecs queries and kLatentKeys keys.
template <class Keys, int Vecs>
void latent_scores(const std::byte* query, size_t query_stride, const std::byte* const* key_list,
                   size_t key_offset, uint32_t key_dim, float* scores, size_t score_stride) {
  using Product = typename Keys::Product;
  using Element = typename Keys::Element;
  Vec sums[kLatentKeys][Vecs];
  const Element* keys[kLatentKeys];
#pragma GCC unroll 16
  for (int k = 0; k < kLatentKeys; ++k) {
    keys[k] = reinterpret_cast<const Element*>(key_list[k] + key_offset);
#pragma GCC unroll 2
    for (int v = 0; v < Vecs; ++v) sums[k][v] = zero();
  }
  uint32_t d = 0;
  for (; d + Keys::kPair <= key_dim; d += Keys::kPair, query += query_stride) {
    typename Product::Weights q[Vecs];
#pragma GCC unroll 2
    for (int v = 0; v < Vecs; ++v) q[v] = Product::weights(query + v * kLineBytes);
#pragma GCC unroll 16
    for (int k = 0; k < kLatentKeys; ++k) {
      const auto key = Product::activation(keys[k] + d);
#pragma GCC unroll 2
      for (int v = 0; v < Vecs; ++v) sums[k][v] = Product::dot(sums[k][v], q[v], key);
    }
  }
  if (d < key_dim) {
#pragma GCC unroll 16
    for (int k = 0; k < kLatentKeys; ++k) {
      const auto key = Product::last_activation(keys[k] + d);
#pragma GCC unroll 2
      for (int v = 0; v < Vecs; ++v)
        sums[k][v] = Product::dot(sums[k][v], Product::weights(query + v * kLineBytes), key);
    }
  }
#pragma GCC unroll 16
  for (int k = 0; k < kLatentKeys; ++k) {
#pragma GCC unroll 2
    for (int v = 0; v < Vecs; ++v) store(scores + k * score_stride + v * 16, sums[k][v]);
  }
}

// Scores of kLatentKeys keys, which begin `key_offset` bytes behind the addresses.
template <class Keys>
void latent_score_keys(const std::byte* query, uint32_t vectors, const std::byte* const* keys,
                       size_t key_offset, uint32_t key_dim, float* scores) {
  const size_t stride = size_t{vectors} * 16;
  uint32_t v = 0;
  for (; v + 2 <= vectors; v += 2)
    latent_scores<Keys, 2>(query + v * kLineBytes, vectors * kLineBytes, keys, key_offset, key_dim,
                           scores + v * 16, stride);
  if (v < vectors)
    latent_scores<Keys, 1>(query + v * kLineBytes, vectors * kLineBytes, keys, key_offset, key_dim,
                           scores + v * 16, stride);
}

// All scores of a tile, of `vectors` vectors of queries.
template <class Keys>
void latent_score_tile(const std::byte* query, uint32_t vectors, const LatentTile& tile, size_t key_offset,
                       uint32_t key_dim, float* scores) {
  for (uint32_t k = 0; k < tile.count; k += kLatentKeys)
    latent_score_keys<Keys>(query, vectors, tile.keys + k, key_offset, key_dim,
                            scores + size_t{k} * vectors * 16);
}

// Where a query goes: one lane of each column.
template <class Keys>
class QueryLane {
 public:
  using Element = typename Keys::Element;
  QueryLane(std::byte* queries, size_t lanes, size_t lane)
      : query_(reinterpret_cast<Element*>(queries) + lane * Keys::kPair), stride_(lanes * Keys::kPair) {}

  // Dimensions [first, first + count).
  void put(uint32_t first, const float* from, uint32_t count) const {
    for (uint32_t d = 0; d < count; d += 16) {
      const uint32_t lanes = lanes_at(d, count);
      alignas(64) Element narrow[16];
      Keys::store_query(narrow, load_lanes(from + d, lanes));
      const uint32_t at = first + d;
      if (lanes == 16 && at % Keys::kPair == 0) {
        for (uint32_t i = 0; i < 16; i += Keys::kPair)
          std::memcpy(query_ + (at + i) / Keys::kPair * stride_, narrow + i, 4);
      } else {
        for (uint32_t i = 0; i < lanes; ++i)
          query_[(at + i) / Keys::kPair * stride_ + (at + i) % Keys::kPair] = narrow[i];
      }
    }
  }

 private:
  Element* query_;
  size_t stride_;
};

struct LatentValues {
  const LatentTile* tile = nullptr;
  const LatentTile* ahead = nullptr;  // whose keys are asked for; or null
  uint32_t ahead_tail = 0;            // bytes between the value's end and the key's,
  uint32_t ahead_tail_at = 0;         // from here on
  uint32_t ahead_shift = 0;           // 1: its values have half as many bytes
  uint32_t begin = 0, end = 0;        // keys; begin: of a pair
  uint32_t dim = 0;                   // first dimension
  uint32_t value_dim = 0;
  const std::byte* weights = nullptr;  // [pairs of the tile][queries]
  size_t weight_stride = 0;            // bytes
  bool resume = false;
  float* sums = nullptr;
  size_t sums_stride = 0;
};

// sums[q, d] (+)= weights[q, k] * value[k, d] for Rows queries and kLatentDims dimensions.
template <class Keys, int Rows>
void latent_values(const LatentValues& args) {
  using Product = typename Keys::Product;
  using Element = typename Keys::Element;
  Vec sums[Rows][2];
#pragma GCC unroll 16
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v)
      sums[r][v] = args.resume ? load(args.sums + r * args.sums_stride + v * 16) : zero();
  }
  const size_t offset = size_t{args.dim} * sizeof(Element);
  const size_t ahead_offset = offset >> args.ahead_shift;
  const std::byte* weights = args.weights + args.begin / Keys::kPair * args.weight_stride;
  const std::byte* const* keys = args.tile->keys;
  const auto add_pair = [&](const typename Product::Weights(&w)[2]) TANDEM_LAMBDA_INLINE {
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) {
      const auto p = Product::activation(reinterpret_cast<const Element*>(weights + r * 4));
#pragma GCC unroll 2
      for (int v = 0; v < 2; ++v) sums[r][v] = Product::dot(sums[r][v], w[v], p);
    }
  };
  uint32_t k = args.begin;
  if (args.value_dim - args.dim >= kLatentDims) [[likely]] {
    for (; k + Keys::kPair <= args.end; k += Keys::kPair, weights += args.weight_stride) {
      if (args.ahead != nullptr) {
#pragma GCC unroll 2
        for (uint32_t i = 0; i < Keys::kPair; ++i) {
          const std::byte* next = args.ahead->keys[k + i];
          prefetch(next + ahead_offset);
          if (sizeof(Element) == 4) prefetch(next + offset + 64);
          if (offset < args.ahead_tail) prefetch(next + args.ahead_tail_at + offset);
        }
      }
      typename Product::Weights w[2];
      Keys::interleave(keys[k] + offset, keys[k + Keys::kPair - 1] + offset, w);
      add_pair(w);
    }
  }
  // The last dimensions and the last token of an odd number: through memory, with zeros for what is not.
  const uint32_t left = args.value_dim - args.dim < kLatentDims ? args.value_dim - args.dim : kLatentDims;
  for (; k < args.end; k += Keys::kPair, weights += args.weight_stride) {
    alignas(64) Element pair[2][kLatentDims] = {};
    for (uint32_t i = 0; i < Keys::kPair && k + i < args.end; ++i)
      std::memcpy(pair[i], keys[k + i] + offset, left * sizeof(Element));
    typename Product::Weights w[2];
    Keys::interleave(reinterpret_cast<const std::byte*>(pair[0]),
                     reinterpret_cast<const std::byte*>(pair[Keys::kPair - 1]), w);
    add_pair(w);
  }
#pragma GCC unroll 16
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) store(args.sums + r * args.sums_stride + v * 16, sums[r][v]);
  }
}

// The same for queries [first, first + count) and all dimensions.
template <class Keys>
void latent_value_rows(LatentValues args, uint32_t first, uint32_t count) {
  float* sums = args.sums + first * args.sums_stride;
  const std::byte* weights = args.weights + size_t{first} * 4;
  const LatentTile* ahead = args.ahead;
  for (args.dim = 0; args.dim < args.value_dim; args.dim += kLatentDims) {
    args.ahead = ahead;
    const auto run = [&]<int Rows>(uint32_t row) {
      args.sums = sums + row * args.sums_stride + args.dim;
      args.weights = weights + size_t{row} * 4;
      latent_values<Keys, Rows>(args);
      args.ahead = nullptr;
      return Rows;
    };
    for (uint32_t row = 0; row < count;) {
      const uint32_t rest = count - row;
      if (kLatentRows >= 12 && (rest >= 20 || rest == 12)) {
        row += run.template operator() < kLatentRows >= 12 ? 12 : 1 > (row);
      } else if (kLatentRows >= 8 && rest >= 8) {
        row += run.template operator() < kLatentRows >= 8 ? 8 : 1 > (row);
      } else if (kLatentRows >= 4 && rest >= 4) {
        row += run.template operator() < kLatentRows >= 4 ? 4 : 1 > (row);
      } else if (kLatentRows >= 2 && rest >= 2) {
        row += run.template operator() < kLatentRows >= 2 ? 2 : 1 > (row);
      } else {
        row += run.template operator()<1>(row);
      }
    }
  }
}

}  // namespace tandem::TANDEM_ISA_NAMESPACE
