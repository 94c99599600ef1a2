// compress, index_select and compressed_attention. What a row computes depends on its own position and cache
// alone, so every chunking of a prompt gives the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include "kernels/compressed_args.h"
#include "kernels/isa/attention.h"
#include "kernels/isa/elementwise.h"
#include "kernels/isa/isa_namespace.h"
#include "kernels/isa/output.h"
#include "kernels/isa/trained_rounding.h"

namespace tandem::TANDEM_ISA_NAMESPACE {

TANDEM_INLINE std::byte* block_of(const KvCacheView& cache, const AttentionRow& row, uint32_t position) {
  return cache.base +
         static_cast<size_t>(row.block_table[position / cache.tokens_per_block]) * cache.block_bytes;
}

// ---- compress

inline size_t compress_tasks(const CompressArgs& args) {
  return args.pending_rows.size();
}

// Walks the pooled tokens of 16 channels: body(keys, scores) of each, the bias added. Slots in order of
// position.
template <class Body>
TANDEM_INLINE void for_pooled(const CompressArgs& args, const AttentionRow& row, uint32_t channel,
                              uint32_t lanes, const Body& body) {
  const uint32_t first = row.position + 1 - args.ratio;  // of the row's own window
  const uint32_t width = args.overlap ? 2 * args.dim : args.dim;
  const auto window = [&](uint32_t begin, uint32_t half) {
    for (uint32_t slot = 0; slot < args.ratio; ++slot) {
      const uint32_t position = begin + slot;
      const float* token = reinterpret_cast<const float*>(block_of(args.pending, row, position)) +
                           size_t{position % args.pending.tokens_per_block} * args.pending_width + half +
                           channel;
      const Vec bias = load_lanes(args.position_bias + size_t{slot} * width + half + channel, lanes);
      body(load_lanes(token + args.keys_offset, lanes),
           add(load_lanes(token + args.scores_offset, lanes), bias));
    }
  };
  if (!args.overlap) return window(first, 0);
  if (first != 0) window(first - args.ratio, 0);
  window(first, args.dim);
}

inline void compress_run(const CompressArgs& args, size_t task, std::byte* scratch) {
  const AttentionRow& row = args.pending_rows[task];
  if ((row.position + 1) % args.ratio != 0) return;
  const uint32_t dim = args.dim;
  float* entry = reinterpret_cast<float*>(scratch);  // [padded(dim)]
  const bool narrow = args.entries.dtype == DType::bf16;
  for (uint32_t d = 0; d < dim; d += 16) {
    const uint32_t lanes = lanes_at(d, dim);
    Vec most = set1(-std::numeric_limits<float>::infinity());
    for_pooled(args, row, d, lanes, [&](Vec, Vec score) { most = max(most, score); });
    Vec denominator = zero(), sum = zero();
    for_pooled(args, row, d, lanes, [&](Vec key, Vec score) {
      const Vec weight = exp(sub(score, most));
      denominator = add(denominator, weight);
      sum = fma(weight, key, sum);
    });
    const Vec pooled = div(sum, denominator);
    write_lanes(DType::f32, entry, d, narrow ? rounded_to_bf16(pooled) : pooled, lanes);
  }
  Vec squares = zero();
  for (uint32_t d = 0; d < dim; d += 16) {
    const Vec x = load_lanes(entry + d, lanes_at(d, dim));
    squares = fma(x, x, squares);
  }
  const float mean = reduce_add(squares) / static_cast<float>(dim);
  const Vec factor = set1(1.0f / __builtin_sqrtf(mean + args.epsilon));
  for (uint32_t d = 0; d < dim; d += 16) {
    const uint32_t lanes = lanes_at(d, dim);
    const Vec x = mul(mul(load_lanes(entry + d, lanes), factor), load_lanes(args.norm + d, lanes));
    write_lanes(DType::f32, entry, d, x, lanes);
  }
  const float* cosine = args.cos_sin + task * args.rope_dim;
  const float* sine = cosine + args.rope_dim / 2;
  float* rotated = entry + dim - args.rope_dim;
  for (uint32_t i = 0; i < args.rope_dim / 2; ++i) {
    const float a = rotated[2 * i], b = rotated[2 * i + 1];
    rotated[2 * i] = a * cosine[i] - b * sine[i];
    rotated[2 * i + 1] = b * cosine[i] + a * sine[i];
  }
  round_as_trained(args.rounding, narrow, entry,
                   args.rounding == TrainedRounding::fp8 ? dim - args.rope_dim : dim);
  const AttentionRow& to = args.entry_rows[task];
  const uint32_t index = to.position % args.entries.tokens_per_block / args.ratio;
  convert_row(entry, args.entries.dtype, block_of(args.entries, to, to.position),
              args.entry_offset + size_t{index} * dim, dim);
}

// ---- index_select

inline size_t index_select_tasks(const IndexSelectArgs& args) {
  return args.rows.size();
}

struct ScoredEntry {
  float score;
  int32_t index;
};
// Whether a is taken before b.
TANDEM_INLINE bool better(const ScoredEntry& a, const ScoredEntry& b) {
  return a.score > b.score || (a.score == b.score && a.index < b.index);
}

// Moves the entry at `at` down a heap of `count` whose root is the one for which no other is `above` it.
template <class Above>
TANDEM_INLINE void sift_down(ScoredEntry* heap, uint32_t count, uint32_t at, const Above& above) {
  const ScoredEntry moved = heap[at];
  for (;;) {
    uint32_t child = 2 * at + 1;
    if (child >= count) break;
    if (child + 1 < count && above(heap[child + 1], heap[child])) ++child;
    if (!above(heap[child], moved)) break;
    heap[at] = heap[child];
    at = child;
  }
  heap[at] = moved;
}

// Scores of entries [begin, begin + count), count <= kKeyTile.
template <class Cache>
TANDEM_INLINE void score_entries(const IndexSelectArgs& args, size_t row_index, const float* query,
                                 uint32_t begin, uint32_t count, float* tile_scores, float* scores) {
  using Element = typename Cache::Element;
  const AttentionRow& row = args.rows[row_index];
  const uint32_t per_block = args.entries.tokens_per_block / args.ratio;
  const Element* keys[kKeyTile];
  for (uint32_t k = 0; k < count; ++k) {
    const uint32_t entry = begin + k;
    keys[k] = reinterpret_cast<const Element*>(block_of(args.entries, row, entry * args.ratio)) +
              args.key_offset + size_t{entry % per_block} * args.dim;
  }
  const uint32_t whole = padded(count);
  for (uint32_t k = count; k < whole; ++k) keys[k] = keys[count - 1];
  for (uint32_t k = 0; k < whole; k += 16) store(scores + k, zero());
  const float* weights = args.weights + row_index * args.heads;
  const size_t stride = padded(args.dim);
  // Four heads share a pass over the keys.
  const auto add_heads = [&](uint32_t first, uint32_t heads) {
    for (uint32_t h = 0; h < heads; ++h) {
      for (uint32_t k = 0; k < whole; k += 16) {
        const Vec relu = max(load(tile_scores + h * kKeyTile + k), zero());
        store(scores + k, fma(set1(weights[first + h]), relu, load(scores + k)));
      }
    }
  };
  uint32_t h = 0;
  for (; h + 4 <= args.heads; h += 4) {
    for (uint32_t k = 0; k < whole; k += 4)
      score_tile<Cache, 4, 4>(query + h * stride, stride, keys + k, args.dim, nullptr, tile_scores + k);
    add_heads(h, 4);
  }
  for (; h < args.heads; ++h) {
    for (uint32_t k = 0; k < whole; k += 16)
      score_tile<Cache, 1, 16>(query + h * stride, stride, keys + k, args.dim, nullptr, tile_scores + k);
    add_heads(h, 1);
  }
}

template <class Cache>
TANDEM_INLINE void index_select_row(const IndexSelectArgs& args, size_t row, uint32_t visible,
                                    std::byte* scratch) {
  const size_t stride = padded(args.dim);
  float* query = reinterpret_cast<float*>(scratch);  // [heads, padded(dim)]
  float* tile_scores = query + args.heads * stride;
  float* scores = tile_scores + 4 * kKeyTile;
  auto* heap = reinterpret_cast<ScoredEntry*>(scores + kKeyTile);  // [top_k]
  for (uint32_t h = 0; h < args.heads; ++h) {
    copy_vector(query + h * stride, args.query + (row * args.heads + h) * args.dim, args.dim);
    for (size_t i = args.dim; i < stride; ++i) query[h * stride + i] = 0.0f;
  }
  // The root of the heap is the worst of those taken.
  const auto worse = [](const ScoredEntry& a, const ScoredEntry& b) { return better(b, a); };
  const uint32_t top_k = args.top_k;
  for (uint32_t begin = 0; begin < visible; begin += kKeyTile) {
    const uint32_t count = visible - begin < kKeyTile ? visible - begin : kKeyTile;
    score_entries<Cache>(args, row, query, begin, count, tile_scores, scores);
    for (uint32_t k = 0; k < count; ++k) {
      const ScoredEntry entry{scores[k], static_cast<int32_t>(begin + k)};
      if (begin + k < top_k) {
        heap[begin + k] = entry;
        if (begin + k + 1 == top_k) {
          for (uint32_t i = top_k / 2; i-- > 0;) sift_down(heap, top_k, i, worse);
        }
      } else if (better(entry, heap[0])) {
        heap[0] = entry;
        sift_down(heap, top_k, 0, worse);
      }
    }
  }
  // Ascending by number: attention adds up in that order.
  const auto later = [](const ScoredEntry& a, const ScoredEntry& b) { return a.index > b.index; };
  for (uint32_t i = top_k / 2; i-- > 0;) sift_down(heap, top_k, i, later);
  int32_t* selected = args.selected + row * top_k;
  for (uint32_t left = top_k; left > 0; --left) {
    selected[left - 1] = heap[0].index;
    heap[0] = heap[left - 1];
    sift_down(heap, left - 1, 0, later);
  }
}

inline void index_select_run(const IndexSelectArgs& args, size_t task, std::byte* scratch) {
  const uint32_t visible = (args.rows[task].position + 1) / args.ratio;
  if (visible <= args.top_k) return;
  if (args.entries.dtype == DType::f32) {
    index_select_row<F32Cache>(args, task, visible, scratch);
  } else {
    index_select_row<Bf16Cache>(args, task, visible, scratch);
  }
}

// ---- compressed_attention

TANDEM_INLINE KeyRange window_before(uint32_t position, uint32_t window) {
  return {position + 1 < window ? 0 : position + 1 - window, position + 1};
}

template <class Cache>
void compressed_attention_row(const CompressedAttentionArgs& args, size_t row_index, HeadsState& state) {
  using Element = typename Cache::Element;
  const AttentionRow& row = args.window_rows[row_index];
  const bool ranged = !args.window_ranges.empty();
  const KeyRange seen = ranged ? args.window_ranges[row_index] : window_before(row.position, args.window);
  const uint32_t first = seen.begin;
  const uint32_t window = seen.end - first;
  uint32_t count = args.ratio == 0 ? 0 : (row.position + 1) / args.ratio;
  const int32_t* selected = nullptr;
  if (args.selected != nullptr && count > args.top_k) {
    count = args.top_k;
    selected = args.selected + row_index * args.top_k;
  }
  const uint32_t per_block = args.ratio == 0 ? 1 : args.entries.tokens_per_block / args.ratio;
  attend<Cache>(state, window + count, [&](uint32_t i, const Element*& key, const Element*& value) {
    if (i < window) {
      const uint32_t position = first + i;
      key = value = reinterpret_cast<const Element*>(block_of(args.window_cache, row, position)) +
                    size_t{position % args.window_cache.tokens_per_block} * args.head_dim;
      return;
    }
    const uint32_t entry = selected == nullptr ? i - window : static_cast<uint32_t>(selected[i - window]);
    key = value = reinterpret_cast<const Element*>(
                      block_of(args.entries, args.entry_rows[row_index], entry * args.ratio)) +
                  size_t{entry % per_block} * args.head_dim;
  });
}

inline size_t compressed_attention_tasks(const CompressedAttentionArgs& args) {
  if (args.num_heads == 0) return 0;
  return args.window_rows.size() * HeadTasks(args.num_heads, args.head_dim, args.head_dim).chunks;
}

inline void compressed_attention_run(const CompressedAttentionArgs& args, size_t task, std::byte* scratch) {
  const HeadTasks heads(args.num_heads, args.head_dim, args.head_dim);
  const size_t row = task % args.window_rows.size();
  const uint32_t chunk = static_cast<uint32_t>(task / args.window_rows.size());
  const uint32_t first = chunk * heads.per_task;
  HeadsState state;
  init_state(state, heads.count(chunk), args.head_dim, args.head_dim, args.scale, scratch);
  for (uint32_t h = 0; h < state.heads; ++h) {
    copy_vector(state.query + size_t{h} * padded(args.head_dim),
                args.query + row * args.query_stride + size_t{first + h} * args.head_dim, args.head_dim);
    // A key that was seen before all others, with the score of the sink and a value of zero.
    state.maximum[h] = args.sinks[first + h];
    state.denominator[h] = 1.0f;
  }
  if (args.window_cache.dtype == DType::f32) {
    compressed_attention_row<F32Cache>(args, row, state);
  } else {
    compressed_attention_row<Bf16Cache>(args, row, state);
  }
  write_heads(state, args.out, row * args.out.row_stride + size_t{first} * args.head_dim);
}

}  // namespace tandem::TANDEM_ISA_NAMESPACE
