// compress, index_select and compressed_attention. What a row computes depends on its own position and cache
// alone, so every chunking of a prompt gives the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "kernels/attention_shape.h"
#include "kernels/compressed_args.h"
#include "kernels/isa/elementwise.h"
#include "kernels/isa/isa_namespace.h"
#include "kernels/isa/latent.h"
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

// One row's indexer. Its heads are the lanes of the scores, as in latent.h.
template <class Keys>
class IndexTask {
 public:
  using Element = typename Keys::Element;

  IndexTask(const IndexSelectArgs& args, size_t row, std::byte* scratch)
      : args_(args), row_(row), visible_((args.rows[row].position + 1) / args.ratio) {
    vectors_ = (args.heads + 15) / 16;
    const uint32_t columns = (args.dim + Keys::kPair - 1) / Keys::kPair;
    query_ = scratch;
    weights_ = reinterpret_cast<float*>(query_ + size_t{columns} * vectors_ * kLineBytes);
    head_scores_ = weights_ + size_t{vectors_} * 16;
    scores_ = head_scores_ + size_t{kLatentKeys} * vectors_ * 16;
    heap_ = reinterpret_cast<ScoredEntry*>(scores_ + kLatentTileKeys);
    query_bytes_ = size_t{columns} * vectors_ * kLineBytes;
  }

  void load_queries() {
    std::memset(query_, 0, query_bytes_);
    for (uint32_t h = 0; h < args_.heads; ++h) {
      QueryLane<Keys>(query_, size_t{vectors_} * 16, h)
          .put(0, args_.query + (row_ * args_.heads + h) * args_.dim, args_.dim);
    }
    for (uint32_t h = 0; h < vectors_ * 16; ++h)
      weights_[h] = h < args_.heads ? args_.weights[row_ * args_.heads + h] : 0.0f;
  }

  // Scores of the entries of a tile.
  void score_tile(uint32_t tile, float* scores) {
    const AttentionRow& row = args_.rows[row_];
    const uint32_t per_block = args_.entries.tokens_per_block / args_.ratio;
    const uint32_t begin = tile * kLatentTileKeys, count = tile_count(tile);
    const size_t stride = size_t{vectors_} * 16;
    for (uint32_t k = 0; k < count; k += kLatentKeys) {
      const std::byte* keys[kLatentKeys];
      for (uint32_t i = 0; i < kLatentKeys; ++i) {
        const uint32_t entry = begin + (k + i < count ? k + i : count - 1);
        keys[i] = block_of(args_.entries, row, entry * args_.ratio) +
                  (args_.key_offset + size_t{entry % per_block} * args_.dim) * sizeof(Element);
      }
      latent_score_keys<Keys>(query_, vectors_, keys, 0, args_.dim, head_scores_);
      for (uint32_t i = 0; i < kLatentKeys && k + i < count; ++i) {
        Vec sum = zero();
        for (uint32_t v = 0; v < stride; v += 16)
          sum = fma(load(weights_ + v), max(load(head_scores_ + i * stride + v), zero()), sum);
        scores[k + i] = reduce_add(sum);
      }
    }
  }

  // All of it, or from scores that are there.
  void select(const float* scored) {
    if (scored == nullptr) load_queries();
    for (uint32_t tile = 0; tile < latent_tiles(visible_); ++tile) {
      if (scored == nullptr) score_tile(tile, scores_);
      take(tile, scored == nullptr ? scores_ : scored + size_t{tile} * kLatentTileKeys);
    }
    // Ascending by number: attention adds up in that order.
    const auto later = [](const ScoredEntry& a, const ScoredEntry& b) { return a.index > b.index; };
    const uint32_t top_k = args_.top_k;
    for (uint32_t i = top_k / 2; i-- > 0;) sift_down(heap_, top_k, i, later);
    int32_t* selected = args_.selected + row_ * top_k;
    for (uint32_t left = top_k; left > 0; --left) {
      selected[left - 1] = heap_[0].index;
      heap_[0] = heap_[left - 1];
      sift_down(heap_, left - 1, 0, later);
    }
  }

 private:
  uint32_t tile_count(uint32_t tile) const {
    const uint32_t left = visible_ - tile * kLatentTileKeys;
    return left < kLatentTileKeys ? left : kLatentTileKeys;
  }
  // The root of the heap is the worst of those taken.
  void take(uint32_t tile, const float* scores) {
    const auto worse = [](const ScoredEntry& a, const ScoredEntry& b) { return better(b, a); };
    const uint32_t begin = tile * kLatentTileKeys, top_k = args_.top_k;
    for (uint32_t k = 0; k < tile_count(tile); ++k) {
      const ScoredEntry entry{scores[k], static_cast<int32_t>(begin + k)};
      if (begin + k < top_k) {
        heap_[begin + k] = entry;
        if (begin + k + 1 == top_k) {
          for (uint32_t i = top_k / 2; i-- > 0;) sift_down(heap_, top_k, i, worse);
        }
      } else if (better(entry, heap_[0])) {
        heap_[0] = entry;
        sift_down(heap_, top_k, 0, worse);
      }
    }
  }

  const IndexSelectArgs& args_;
  size_t row_;
  uint32_t visible_, vectors_;
  size_t query_bytes_;
  std::byte* query_;    // [columns][vectors_ * 16 heads][pair]
  float* weights_;      // [vectors_ * 16]
  float* head_scores_;  // [kLatentKeys][vectors_ * 16]
  float* scores_;       // [kLatentTileKeys]
  ScoredEntry* heap_;   // [top_k]
};

template <class Keys>
void index_select_task(const IndexSelectArgs& args, size_t task, std::byte* scratch) {
  const AttentionGroup& group = args.plan->group_of_task(task);
  IndexTask<Keys> work(args, group.first_row, scratch);
  if (!group.spread()) return work.select(nullptr);
  work.load_queries();
  const uint32_t begin = (static_cast<uint32_t>(task) - group.first_task) * group.tiles_per_task;
  for (uint32_t tile = begin; tile < begin + group.tiles_per_task && tile < group.tiles; ++tile)
    work.score_tile(tile, args.plan->partials + group.partials + size_t{tile} * kLatentTileKeys);
}

inline void index_select_run(const IndexSelectArgs& args, size_t task, std::byte* scratch) {
  if (args.entries.dtype == DType::f32) {
    index_select_task<F32Keys>(args, task, scratch);
  } else {
    index_select_task<Bf16Keys>(args, task, scratch);
  }
}
inline void index_select_fold(const IndexSelectArgs& args, size_t fold, std::byte* scratch) {
  const AttentionGroup& group = args.plan->group_of_fold(fold);
  IndexTask<F32Keys>(args, group.first_row, scratch).select(args.plan->partials + group.partials);
}

// ---- compressed_attention

class CompressedSource {
 public:
  static constexpr bool kSinks = true, kValueFirst = false;

  CompressedSource(const CompressedAttentionArgs& args, const AttentionGroup& group, uint32_t first_head)
      : args_(args), row_(group.first_row), first_head_(first_head), keys_(compressed_keys(args, row_)) {
    token_bytes_ = size_t{args.head_dim} * (args.window_cache.dtype == DType::f32 ? 4 : 2);
    per_block_ = args.ratio == 0 ? 1 : args.entries.tokens_per_block / args.ratio;
  }
  uint32_t keys(uint32_t) const { return keys_.window + keys_.entries; }
  const std::byte* key(uint32_t i) const {
    if (i < keys_.window) {
      const uint32_t position = keys_.first + i;
      return block_of(args_.window_cache, args_.window_rows[row_], position) +
             position % args_.window_cache.tokens_per_block * token_bytes_;
    }
    const uint32_t entry = keys_.selected == nullptr
                               ? i - keys_.window
                               : static_cast<uint32_t>(keys_.selected[i - keys_.window]);
    return block_of(args_.entries, args_.entry_rows[row_], entry * args_.ratio) +
           entry % per_block_ * token_bytes_;
  }
  template <class Lane>
  void query(uint32_t, uint32_t h, const Lane& lane) const {
    lane.put(0, args_.query + row_ * args_.query_stride + size_t{first_head_ + h} * args_.head_dim,
             args_.head_dim);
  }
  // Seen before all keys, with a value of zero.
  float sink(uint32_t h) const { return args_.sinks[first_head_ + h]; }
  void write(uint32_t, uint32_t h, const float* total, uint32_t padded_dim) const {
    write_total(total, padded_dim, args_.out,
                row_ * args_.out.row_stride + size_t{first_head_ + h} * args_.head_dim, args_.head_dim);
  }

 private:
  const CompressedAttentionArgs& args_;
  size_t row_;
  uint32_t first_head_;
  CompressedKeys keys_;
  size_t token_bytes_;
  uint32_t per_block_;
};

struct CompressedPlan {
  static constexpr bool kCodes = false;
  static size_t decoded_bytes(const CompressedAttentionArgs&) { return 0; }
  static constexpr auto chunks = compressed_chunks;
  static CompressedSource source(const CompressedAttentionArgs& args, const AttentionGroup& group,
                                 uint32_t first_head) {
    return CompressedSource(args, group, first_head);
  }
  static uint32_t key_dim(const CompressedAttentionArgs& args) { return args.head_dim; }
  static uint32_t value_dim(const CompressedAttentionArgs& args) { return args.head_dim; }
  static bool is_f32(const CompressedAttentionArgs& args) { return args.window_cache.dtype == DType::f32; }
};

inline void compressed_attention_run(const CompressedAttentionArgs& args, size_t task, std::byte* scratch) {
  latent_run<CompressedPlan>(args, task, scratch);
}
inline void compressed_attention_fold(const CompressedAttentionArgs& args, size_t fold, std::byte* scratch) {
  latent_fold<CompressedPlan>(args, fold, scratch);
}

}  // namespace tandem::TANDEM_ISA_NAMESPACE
