// Attention over keys that are values too (MLA's latents, DeepSeek-V4's window and entries), one vector a
// token in rows, wherever they lie. The lanes of the scores are queries (rows of a task times heads): a pair
// of a key's values is broadcast and meets the same pair of 16 queries, so that keys are used in place. For
// the sums the lanes are dimensions, and two tokens are interleaved in registers as they are read.
//
// Tiles of kLatentTileKeys keys, counted from the first; partial results as in attention_tile.h, their
// dimensions in the order that interleaving leaves (restore_order).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "kernels/attention_shape.h"
#include "kernels/isa/attention_tile.h"
#include "kernels/isa/isa_namespace.h"
#include "kernels/isa/latent_tiles.h"
#include "kernels/isa/product.h"

namespace tandem::TANDEM_ISA_NAMESPACE {

// A task: rows [first_row, first_row + rows) times `heads` heads. Source knows what they are:
//   uint32_t keys(uint32_t row)                  how many keys the row has, not falling from row to row
//   const std::byte* key(uint32_t i)             the i-th key of the last row; of every row that has it
//   void query(uint32_t row, uint32_t h, const QueryLane&) puts it there
//   void write(uint32_t row, uint32_t h, const float* total, uint32_t padded_dim)
//   float sink(uint32_t h)                       score of a key without a value, if kSinks
//   kValueFirst                                  the value stands before the key, not at its beginning
// and of a cache of codes:
//   uint8_t scale(uint32_t i)                    of the i-th key
//   void decode(const std::byte* key, std::byte* to)  key and value in bf16, without the scale
//   uint32_t value_codes()                       bytes before the rotated part
template <class Keys, class Source>
class LatentTask {
 public:
  using Element = typename Keys::Element;
  using Tile = typename Keys::Tile;

  LatentTask(const Source& source, uint32_t rows, uint32_t tiles, uint32_t heads, uint32_t key_dim,
             uint32_t value_dim, float scale, size_t row_floats, size_t decoded_bytes, std::byte* scratch)
      : source_(source),
        rows_(rows),
        tiles_(tiles),
        heads_(heads),
        key_dim_(key_dim),
        value_dim_(value_dim),
        scale_log2_(scale * kLog2E),
        row_floats_(row_floats) {
    vectors_ = (rows * heads + 15) / 16;
    padded_dim_ = latent_padded_dim(value_dim);
    stride_ = padded_dim_ + 16;
    columns_ = (key_dim + Keys::kPair - 1) / Keys::kPair;
    decoded_ = scratch;
    key_scales_ = reinterpret_cast<float*>(scratch + decoded_bytes) - kLatentTileKeys;
    decoded_row_ = decoded_bytes / kLatentTileKeys - sizeof(float);
    query_ = scratch + decoded_bytes;
    scores_ = reinterpret_cast<float*>(query_ + size_t{columns_} * vectors_ * kLineBytes);
    part_ = scores_ + size_t{kLatentTileKeys} * vectors_ * 16;
    total_ = part_ + size_t{rows} * heads * stride_;
  }

  void whole() {
    load_queries();
    start();
    LatentTile lists[2];
    fill(lists[0], 0);
    for (uint32_t tile = 0; tile < tiles_; ++tile) {
      LatentTile& next = lists[(tile + 1) % 2];
      next.count = 0;
      if (tile + 1 < tiles_) fill(next, tile + 1);
      run_tile(tile, lists[tile % 2], next, part_);
      add_up(tile, part_);
    }
    write();
  }
  void part(uint32_t begin, uint32_t end, float* partials) {
    load_queries();
    LatentTile lists[2];
    fill(lists[begin % 2], begin);
    for (uint32_t tile = begin; tile < end; ++tile) {
      LatentTile& next = lists[(tile + 1) % 2];
      next.count = 0;
      if (tile + 1 < end) fill(next, tile + 1);
      run_tile(tile, lists[tile % 2], next, partials + size_t{tile} * rows_ * row_floats_);
    }
  }
  void fold(const float* partials) {
    start();
    for (uint32_t tile = 0; tile < tiles_; ++tile)
      add_up(tile, partials + size_t{tile} * rows_ * row_floats_);
    write();
  }

 private:
  uint32_t first_row_of(uint32_t tile) const {
    uint32_t row = 0;
    while (source_.keys(row) <= tile * kLatentTileKeys) ++row;
    return row;
  }
  uint32_t tile_keys(uint32_t tile, uint32_t row) const {
    const uint32_t keys = source_.keys(row) - tile * kLatentTileKeys;
    return keys < kLatentTileKeys ? keys : kLatentTileKeys;
  }

  void start() {
    if constexpr (Source::kSinks) {
      for (uint32_t q = 0; q < rows_ * heads_; ++q) {
        float* total = total_ + q * stride_;
        for (uint32_t d = 0; d < padded_dim_; d += 16) store(total + d, zero());
        total[padded_dim_] = source_.sink(q % heads_) * kLog2E;
        total[padded_dim_ + 1] = 1.0f;
      }
    }
  }
  void add_up(uint32_t tile, const float* parts) {
    for (uint32_t q = first_row_of(tile) * heads_; q < rows_ * heads_; ++q)
      fold_partial(total_ + q * stride_, parts + q * stride_, padded_dim_, tile == 0 && !Source::kSinks);
  }

  void load_queries() {
    // Lanes without a query, and the second of an odd column.
    std::memset(query_, 0, size_t{columns_} * vectors_ * kLineBytes);
    for (uint32_t q = 0; q < rows_ * heads_; ++q)
      source_.query(q / heads_, q % heads_, QueryLane<Keys>(query_, size_t{vectors_} * 16, q));
  }

  void fill(LatentTile& list, uint32_t tile) const {
    list.count = tile_keys(tile, rows_ - 1);
    for (uint32_t i = 0; i < list.count; ++i) list.keys[i] = source_.key(tile * kLatentTileKeys + i);
    for (uint32_t i = list.count; i < kLatentTileKeys; ++i) list.keys[i] = list.keys[list.count - 1];
    if constexpr (Keys::kCoded) {
      for (uint32_t i = 0; i < list.count; ++i) list.scales[i] = source_.scale(tile * kLatentTileKeys + i);
    }
  }

  // Of codes: the tile's keys decoded in scratch.
  const LatentTile& decoded(const LatentTile& list, LatentTile& to) {
    if constexpr (Keys::kCoded) {
      to.count = list.count;
      for (uint32_t i = 0; i < list.count; ++i) {
        std::byte* row = decoded_ + i * decoded_row_;
        source_.decode(list.keys[i], row);
        to.keys[i] = row;
        key_scales_[i] = kv_scale(list.scales[i]);
      }
      for (uint32_t i = list.count; i < kLatentTileKeys; ++i) to.keys[i] = to.keys[list.count - 1];
      return to;
    } else {
      return list;
    }
  }

  // Turns the scores of 16 queries into weights in place, pairs of keys side by side.
  void soften(uint32_t vector, uint32_t keys, const uint32_t* counts, float* partial, uint32_t first_query) {
    const size_t stride = size_t{vectors_} * 16;
    float* scores = scores_ + vector * 16;
    const Vec scale = set1(scale_log2_);
    const Vec minus_infinity = set1(-std::numeric_limits<float>::infinity());
    // Keys from `common` on are not all queries' keys.
    uint32_t common = keys;
    for (uint32_t i = 0; i < 16; ++i) common = counts[i] < common ? counts[i] : common;
    const auto own = [&](Vec v, uint32_t key, float other) {
      alignas(64) float all[16];
      store(all, v);
      for (uint32_t i = 0; i < 16; ++i) all[i] = key < counts[i] ? all[i] : other;
      return load(all);
    };
    Vec most = minus_infinity;
    const auto score_of = [&](uint32_t k) TANDEM_LAMBDA_INLINE {
      const Vec score = load(scores + k * stride);
      return Keys::kCoded ? mul(score, set1(key_scales_[k])) : score;
    };
    for (uint32_t k = 0; k < keys; ++k) {
      Vec score = mul(score_of(k), scale);
      if (k >= common) [[unlikely]]
        score = own(score, k, -std::numeric_limits<float>::infinity());
      most = max(score, most);
    }
    const Vec minus_maximum = sub(zero(), most);
    const auto weigh = [&](uint32_t k) TANDEM_LAMBDA_INLINE {
      if (k >= keys) return zero();
      const Vec weight = Keys::weigh(fma(score_of(k), scale, minus_maximum));
      if (k >= common) [[unlikely]]
        return own(weight, k, 0.0f);
      return weight;
    };
    Vec sum = zero();
    for (uint32_t k = 0; k < keys; k += Keys::kPair) {
      float* to = scores + k / Keys::kPair * stride;
      if constexpr (Keys::kPair == 1) {
        const Vec weight = weigh(k);
        store(to, weight);
        sum = add(sum, weight);
      } else {
        Vec first = weigh(k), second = weigh(k + 1);
        store_rounded_pairs(reinterpret_cast<std::byte*>(to), first, second);
        sum = add(add(sum, first), second);
        if constexpr (Keys::kCoded) {
          // Not where there is no key: its scale may be NaN.
          const auto scaled = [&](Vec weight, uint32_t key) {
            if (key >= keys) return zero();
            const Vec product = mul(weight, set1(key_scales_[key]));
            return key >= common ? own(product, key, 0.0f) : product;
          };
          first = scaled(first, k);
          second = scaled(second, k + 1);
          store_rounded_pairs(reinterpret_cast<std::byte*>(to), first, second);
        }
      }
    }
    alignas(64) float ends[2][16];
    store(ends[0], most);
    store(ends[1], sum);
    for (uint32_t i = 0; i < 16; ++i) {
      const uint32_t q = vector * 16 + i;
      if (q < first_query || q >= rows_ * heads_) continue;
      partial[q * stride_ + padded_dim_] = ends[0][i];
      partial[q * stride_ + padded_dim_ + 1] = ends[1][i];
    }
  }

  // Partial results of the rows that have keys in the tile.
  void run_tile(uint32_t tile, const LatentTile& source, const LatentTile& next, float* partial) {
    LatentTile space;
    const LatentTile& list = decoded(source, space);
    constexpr bool kValueFirst = Source::kValueFirst;
    latent_score_tile<Tile>(query_, vectors_, list, kValueFirst ? size_t{value_dim_} * sizeof(Element) : 0,
                            key_dim_, scores_);
    const uint32_t first = first_row_of(tile);
    for (uint32_t v = 0; v < vectors_; ++v) {
      uint32_t counts[16];
      for (uint32_t i = 0; i < 16; ++i) {
        const uint32_t row = (v * 16 + i) / heads_;
        // Those without a key or a row take one: nobody reads what comes of it.
        counts[i] = row < first || row >= rows_ ? list.count : tile_keys(tile, row);
      }
      soften(v, list.count, counts, partial, first * heads_);
    }
    LatentValues values;
    values.tile = &list;
    values.value_dim = value_dim_;
    values.ahead = next.count == 0 ? nullptr : &next;
    values.ahead_tail =
        static_cast<uint32_t>((kValueFirst ? key_dim_ : key_dim_ - value_dim_) * sizeof(Element));
    if constexpr (Keys::kCoded) {
      values.ahead_tail_at = source_.value_codes();
      values.ahead_shift = 1;
    } else {
      values.ahead_tail_at = static_cast<uint32_t>(value_dim_ * sizeof(Element));
    }
    values.weights = reinterpret_cast<const std::byte*>(scores_);
    values.weight_stride = size_t{vectors_} * 64;
    values.sums = partial;
    values.sums_stride = stride_;
    const uint32_t least = tile_keys(tile, first), most = list.count;
    const uint32_t common = least == most ? most : least / Keys::kPair * Keys::kPair;
    values.end = common;
    if (common != 0) latent_value_rows<Tile>(values, first * heads_, (rows_ - first) * heads_);
    values.ahead = nullptr;
    values.begin = common;
    values.resume = common != 0;
    for (uint32_t row = first; row < rows_; ++row) {
      values.end = tile_keys(tile, row);
      if (values.end != common) latent_value_rows<Tile>(values, row * heads_, heads_);
    }
  }

  void write() {
    for (uint32_t q = 0; q < rows_ * heads_; ++q) {
      float* total = total_ + q * stride_;
      for (uint32_t d = 0; d < padded_dim_; d += kLatentDims) Keys::restore_order(total + d);
      source_.write(q / heads_, q % heads_, total, padded_dim_);
    }
  }

  const Source& source_;
  uint32_t rows_, tiles_, heads_, key_dim_, value_dim_;
  float scale_log2_;
  size_t row_floats_;
  uint32_t vectors_, padded_dim_, columns_;
  size_t stride_;
  std::byte* decoded_;  // [kLatentTileKeys][decoded_row_ bytes], if coded
  size_t decoded_row_;
  float* key_scales_;  // [kLatentTileKeys], if coded
  std::byte* query_;   // [columns_][vectors_ * 16 queries][pair]
  float* scores_;      // [keys of a tile][vectors_ * 16]; then the weights, [pairs of keys][queries][pair]
  float* part_;        // [queries, stride_]
  float* total_;
};

// A planned kernel over a Source. Plan says how its arguments are read:
//   HeadChunks chunks(args); Source source(args, group, first_head); key_dim, value_dim, is_f32 (args);
//   kCodes: its cache may have codes; decoded_bytes(args): of scratch, 0 if it has none
// Calls body(task of the chunk, its partial results).
template <class Plan, class Keys, class Args, class Body>
TANDEM_INLINE void with_chunk(const Args& args, const AttentionGroup& group, uint32_t chunk,
                              std::byte* scratch, const Body& body) {
  const HeadChunks chunks = Plan::chunks(args);
  const uint32_t value_dim = Plan::value_dim(args);
  const size_t row_floats = size_t{chunks.per_chunk} * (latent_padded_dim(value_dim) + 16);
  const auto source = Plan::source(args, group, chunk * chunks.per_chunk);
  LatentTask<Keys, std::remove_const_t<decltype(source)>> task(
      source, group.rows, group.tiles, chunks.heads(chunk), Plan::key_dim(args), value_dim, args.scale,
      row_floats, Plan::decoded_bytes(args), scratch);
  body(task, args.plan->partials + group.partials + size_t{chunk} * group.tiles * group.rows * row_floats);
}

template <class Plan, class Keys, class Args>
void latent_task(const Args& args, size_t task, std::byte* scratch) {
  const AttentionGroup& group = args.plan->group_of_task(task);
  const uint32_t parts = (group.tiles + group.tiles_per_task - 1) / group.tiles_per_task;
  const uint32_t at = static_cast<uint32_t>(task) - group.first_task;
  const uint32_t first = at / parts * group.chunks_per_task, part = at % parts;
  for (uint32_t chunk = first; chunk < first + group.chunks_per_task; ++chunk) {
    with_chunk<Plan, Keys>(args, group, chunk, scratch, [&](auto& work, float* partials) {
      if (!group.spread()) return work.whole();
      const uint32_t begin = part * group.tiles_per_task, end = begin + group.tiles_per_task;
      work.part(begin, end < group.tiles ? end : group.tiles, partials);
    });
  }
}
template <class Plan, class Args>
void latent_run(const Args& args, size_t task, std::byte* scratch) {
  if constexpr (Plan::kCodes) {
    if (Plan::decoded_bytes(args) != 0) return latent_task<Plan, CodedKeys>(args, task, scratch);
  }
  if (Plan::is_f32(args)) {
    latent_task<Plan, F32Keys>(args, task, scratch);
  } else {
    latent_task<Plan, Bf16Keys>(args, task, scratch);
  }
}
template <class Plan, class Args>
void latent_fold(const Args& args, size_t fold, std::byte* scratch) {
  const AttentionGroup& group = args.plan->group_of_fold(fold);
  const uint32_t chunk = static_cast<uint32_t>(fold) - group.first_fold;
  const auto add_up = [](auto& work, float* partials) { work.fold(partials); };
  if (Plan::is_f32(args)) {
    with_chunk<Plan, F32Keys>(args, group, chunk, scratch, add_up);
  } else {
    with_chunk<Plan, Bf16Keys>(args, group, chunk, scratch, add_up);
  }
}

}  // namespace tandem::TANDEM_ISA_NAMESPACE
