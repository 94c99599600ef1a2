// gqa: tiles of kTileKeys keys at fixed places from a sequence's first token on. The queries of a task (rows
// that follow one another, times the heads that share keys) are a matrix: scores = queries x keys and sums =
// weights x values are products of register tiles as in product.h, over panels of the cache in place
// (paged_kv_layout.h), or over panels decoded from it a few at a time into scratch, where they stay in L1
// while all queries use them. What a row computes depends on its own position and cache alone.
//
// With a window the queries of a task have a tile's panels from the first on that any of them sees; weights
// of keys before a row's own first are 0. A sink is where a row's fold begins: a total with a weight and no
// value.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/attention_shape.h"
#include "kernels/isa/attention_tile.h"
#include "kernels/isa/gqa_tiles.h"
#include "kernels/isa/isa_namespace.h"
#include "kernels/isa/product.h"

namespace tandem::TANDEM_ISA_NAMESPACE {

// kBounded: rows may have a window and sinks. Not a member: it costs a register where there is none.
template <class Keys, bool kBounded>
class GqaTask {
 public:
  using Element = typename Keys::Element;

  GqaTask(const GqaArgs& args, const AttentionGroup& group, std::byte* scratch)
      : args_(args),
        group_(group),
        chunks_(gqa_chunks(args)),
        layout_{args.cache.dtype, args.cache.tokens_per_block, args.num_kv_heads, args.head_dim} {
    row_floats_ = size_t{chunks_.per_chunk} * partial_floats(args.head_dim);
    padded_dim_ = layout_.padded_dim();
    stride_ = partial_floats(args.head_dim);
    columns_ = (args.head_dim + Keys::kPair - 1) / Keys::kPair;
    query_stride_ = columns_ * Keys::kPair;
    const size_t queries = size_t{group.rows} * chunks_.per_chunk;
    decoded_ = scratch;
    scales_ = reinterpret_cast<float*>(scratch + kDecodedPanels * decoded_panel_bytes(args.head_dim));
    scratch += gqa_decoded_bytes(args);
    query_ = reinterpret_cast<Element*>(scratch);
    scores_ = reinterpret_cast<float*>(scratch) + queries * (padded_dim_ + 16);
    part_ = scores_ + queries * kScoreStride;
    total_ = part_ + queries * stride_;
  }

  // All tiles of chunks [begin, end), folded.
  void whole(uint32_t begin, uint32_t end) {
    PanelList lists[2];
    uint32_t turn = 0;
    for (uint32_t chunk = begin; chunk < end; ++chunk) {
      take(chunk);
      load_queries();
      start();
      for (uint32_t tile = 0; tile < group_.tiles; ++tile, turn ^= 1) {
        const bool is_first = chunk == begin && tile == 0;
        if (is_first) fill(lists[turn], 0, kv_head_);
        PanelList& next = lists[turn ^ 1];
        next.count = 0;
        if (tile + 1 < group_.tiles) {
          fill(next, tile + 1, kv_head_);
        } else if (chunk + 1 < end) {
          fill(next, 0, (chunk + 1) / chunks_.count);
        }
        run_tile(tile, lists[turn], next, is_first, part_);
        add_up(tile, part_);
      }
      write(total_);
    }
  }

  // Tiles [begin, end) of a chunk, to the workspace.
  void part(uint32_t chunk, uint32_t begin, uint32_t end, float* partials) {
    take(chunk);
    load_queries();
    PanelList lists[2];
    fill(lists[begin % 2], begin, kv_head_);
    for (uint32_t tile = begin; tile < end; ++tile) {
      PanelList& next = lists[(tile + 1) % 2];
      next.count = 0;
      if (tile + 1 < end) fill(next, tile + 1, kv_head_);
      run_tile(tile, lists[tile % 2], next, tile == begin,
               partials + size_t{tile} * group_.rows * row_floats_);
    }
  }

  // What the parts of a chunk have left in the workspace.
  void fold(uint32_t chunk, const float* partials) {
    take(chunk);
    start();
    for (uint32_t tile = 0; tile < group_.tiles; ++tile)
      add_up(tile, partials + size_t{tile} * group_.rows * row_floats_);
    write(total_);
  }

 private:
  void take(uint32_t chunk) {
    kv_head_ = chunk / chunks_.count;
    const uint32_t part = chunk % chunks_.count;
    first_head_ = kv_head_ * chunks_.sharing + part * chunks_.per_chunk;
    heads_ = chunks_.heads(part);
  }

  TANDEM_INLINE uint32_t places_of(uint32_t row) const {
    return gqa_places(args_, args_.rows[group_.first_row].position + row);
  }
  // Tiles are counted from the group's first. The place of such a tile's first key:
  TANDEM_INLINE uint32_t place_of(uint32_t tile) const {
    return (kBounded ? group_.first_tile + tile : tile) * kTileKeys;
  }
  // The first row that has keys in a tile, and the one behind the last.
  TANDEM_INLINE uint32_t first_row_of(uint32_t tile) const {
    uint32_t row = 0;
    while (places_of(row) <= place_of(tile)) ++row;
    return row;
  }
  TANDEM_INLINE uint32_t end_row_of(uint32_t tile) const {
    uint32_t row = group_.rows;
    if constexpr (kBounded) {
      while (first_place_of(row - 1) >= place_of(tile) + kTileKeys) --row;
    }
    return row;
  }
  // Of a row's first key.
  TANDEM_INLINE uint32_t first_place_of(uint32_t row) const {
    return gqa_first_place(args_, args_.rows[group_.first_row].position + row);
  }
  // The first place in a tile that is a row's own.
  TANDEM_INLINE uint32_t tile_begin(uint32_t tile, uint32_t row) const {
    if constexpr (!kBounded) return 0;
    const uint32_t place = first_place_of(row);
    return place < place_of(tile) ? 0 : place - place_of(tile);
  }
  // The first panel of a tile that any row needs: rows that come first see the furthest back.
  TANDEM_INLINE uint32_t first_panel_of(uint32_t tile) const {
    return tile_begin(tile, first_row_of(tile)) / kPanelTokens;
  }

  void start() {
    if (!kBounded || args_.sinks == nullptr) return;
    for (uint32_t q = 0; q < group_.rows * heads_; ++q) {
      float* total = total_ + q * stride_;
      for (uint32_t d = 0; d < padded_dim_; d += 16) store(total + d, zero());
      total[padded_dim_] = args_.sinks[first_head_ + q % heads_] * kLog2E;
      total[padded_dim_ + 1] = 1.0f;
    }
  }
  void add_up(uint32_t tile, const float* parts) {
    const uint32_t end = end_row_of(tile);
    for (uint32_t row = first_row_of(tile); row < end; ++row) {
      bool first = tile == 0;
      if constexpr (kBounded) {
        first = args_.sinks == nullptr && first_place_of(row) / kTileKeys == group_.first_tile + tile;
      }
      for (uint32_t q = row * heads_; q < (row + 1) * heads_; ++q)
        fold_partial(total_ + q * stride_, parts + q * stride_, padded_dim_, first);
    }
  }

  void load_queries() {
    const uint32_t dim = args_.head_dim;
    for (uint32_t r = 0; r < group_.rows; ++r) {
      const float* row =
          args_.query + (group_.first_row + r) * args_.query_stride + size_t{first_head_} * dim;
      for (uint32_t h = 0; h < heads_; ++h, row += dim) {
        Element* to = query_ + (size_t{r} * heads_ + h) * query_stride_;
        uint32_t d = 0;
        for (; d + 16 <= dim; d += 16) Keys::store_query(to + d, load(row + d));
        if (d == dim) continue;
        alignas(64) Element rest[16];
        Keys::store_query(rest, load_partial(row + d, dim - d));
        for (uint32_t i = 0; d + i < query_stride_; ++i) to[d + i] = rest[i];
      }
    }
  }

  void fill(PanelList& list, uint32_t tile, uint32_t kv_head) const {
    const uint32_t places = places_of(group_.rows - 1) - place_of(tile);
    list.count = places < kTileKeys ? (places + kPanelTokens - 1) / kPanelTokens : kTilePanels;
    const int32_t* table = args_.rows[group_.first_row].block_table;
    const uint32_t panels = layout_.panels(), tokens = args_.cache.tokens_per_block;
    const uint32_t begin = first_panel_of(tile), first = place_of(tile) / kPanelTokens + begin;
    uint32_t block = first / panels, panel = first % panels;
    const size_t bytes = layout_.element_bytes();
    for (uint32_t i = begin; i < list.count; ++i) {
      const std::byte* base = args_.cache.base + static_cast<size_t>(table[block]) * args_.cache.block_bytes;
      list.keys[i] = base + layout_.key_panel(kv_head, panel) * bytes;
      list.values[i] = base + layout_.value_panel(kv_head, panel) * bytes;
      if constexpr (Keys::kCoded) {
        list.scales[i] = base + layout_.scales(kv_head, panel);
        prefetch(list.scales[i]);
      }
      const uint32_t lanes = tokens - panel * kPanelTokens;
      list.lanes[i] = static_cast<uint8_t>(lanes < kPanelTokens ? lanes : kPanelTokens);
      if (++panel == panels) {
        panel = 0;
        ++block;
      }
    }
    // So that all of them may be asked for.
    for (uint32_t i = 0; i < begin; ++i) list.keys[i] = list.keys[begin];
    for (uint32_t i = list.count; i < kTilePanels; ++i) list.keys[i] = list.keys[list.count - 1];
  }

  // Codes: the scales of a tile, and panels of it, decoded as they are needed.
  void load_scales(const PanelList& list, uint32_t begin) {
    for (uint32_t i = begin; i < list.count; ++i) {
      load_kv_scales(list.scales[i], scales_ + i * kPanelTokens);
      load_kv_scales(list.scales[i] + kPanelTokens, scales_ + kTileKeys + i * kPanelTokens);
    }
  }
  std::byte* decoded_panel(uint32_t panel) const {
    return decoded_ + panel % kDecodedPanels * decoded_panel_bytes(args_.head_dim);
  }
  // Where the keys of panels [begin, end) are.
  const std::byte* const* keys_of(const PanelList& list, uint32_t begin, uint32_t end) {
    if constexpr (Keys::kCoded) {
      for (uint32_t p = begin; p < end; ++p) {
        panels_[p] = decoded_panel(p);
        decode_keys(list.keys[p], layout_.key_columns(), decoded_panel(p));
      }
      return panels_ + begin;
    } else {
      return list.keys + begin;
    }
  }

  // Partial results of the rows that have keys in the tile. `cold`: nobody has asked for its keys yet.
  void run_tile(uint32_t tile, const PanelList& list, const PanelList& next, bool cold, float* partial) {
    static_assert(kGroupPanels <= kDecodedPanels);
    const uint32_t first = first_row_of(tile), end_row = end_row_of(tile);
    const uint32_t first_panel = first_panel_of(tile);
    if constexpr (Keys::kCoded) load_scales(list, first_panel);
    const uint32_t queries = (end_row - first) * heads_;
    const Element* query = query_ + size_t{first} * heads_ * query_stride_;
    partial += size_t{first} * heads_ * stride_;
    const Element* rows[kTileRows];
    for (uint32_t p = first_panel; p < list.count; p += kGroupPanels) {
      const uint32_t panels = list.count - p < kGroupPanels ? list.count - p : kGroupPanels;
      // Not those of rows that end before.
      uint32_t skipped = 0;
      while (places_of(first + skipped) <= place_of(tile) + p * kPanelTokens) ++skipped;
      const std::byte* ahead[2 * kGroupPanels];
      uint32_t ahead_count = 0;
      for (uint32_t i = p; i < p + panels; ++i) ahead[ahead_count++] = list.values[i];
      for (uint32_t i = p + kGroupPanels; cold && i < p + 2 * kGroupPanels && i < list.count; ++i)
        ahead[ahead_count++] = list.keys[i];
      const std::byte* const* keys = keys_of(list, p, p + panels);
      for_row_tiles(queries - skipped * heads_, [&](uint32_t row, uint32_t height, uint32_t t, uint32_t of) {
        row += skipped * heads_;
        for (uint32_t r = 0; r < height; ++r) rows[r] = query + size_t{row + r} * query_stride_;
        ScoreArgs score;
        score.panels = keys;
        score.ahead = ahead + ahead_count * t / of;
        score.ahead_count = ahead_count * (t + 1) / of - ahead_count * t / of;
        score.columns = columns_;
        score.scores = scores_ + size_t{row} * kScoreStride + p * kPanelTokens;
        run_tile_row<ScoreTile<Keys>>(score, panels, rows, height, 0);
      });
    }
    const float scale = args_.scale * kLog2E;
    // Some of the next tile's keys already, a panel a query, so that memory is not idle.
    const bool small = layout_.key_columns() * kLineBytes <= kTilePanels * kSoftenAhead<Keys>;
    const uint32_t asked = next.count == 0 || !small   ? 0
                           : queries < kTilePanels / 4 ? queries
                                                       : kTilePanels / 4;
    for (uint32_t q = 0; q < queries; ++q) {
      const uint32_t row = first + q / heads_, places = tile_places(tile, row);
      const uint32_t begin = tile_begin(tile, row);
      soften_tile<Keys, kBounded>(
          scores_ + size_t{q} * kScoreStride + first_panel * 16,
          (places + kPanelTokens - 1) / kPanelTokens - first_panel,
          [&](uint32_t i) TANDEM_LAMBDA_INLINE {
            const uint32_t left = places - (first_panel + i) * kPanelTokens;
            return left < list.lanes[first_panel + i] ? left : uint32_t{list.lanes[first_panel + i]};
          },
          begin - first_panel * kPanelTokens, scale, scales_ + first_panel * kPanelTokens,
          q < asked ? next.keys[q] : nullptr, partial + size_t{q} * stride_ + padded_dim_);
    }
    ValueArgs value;
    value.panels = Keys::kCoded ? panels_ : list.values;
    value.ahead_panel = asked;
    value.lanes = list.lanes;
    value.line_stride = size_t{padded_dim_} * Keys::kPair * sizeof(Element);
    value.sums_stride = stride_;
    // Where the weight of a query's place 0 would be: they begin where the scores of `first_panel` did.
    const Element* weights =
        reinterpret_cast<const Element*>(scores_ + first_panel * 16) - size_t{first_panel} * kPanelTokens;
    const auto add_decoded = [&](uint32_t query_begin, uint32_t count) {
      for_row_tiles(count, [&](uint32_t row, uint32_t height, uint32_t t, uint32_t of) {
        const size_t at = query_begin + row;
        for (uint32_t r = 0; r < height; ++r)
          rows[r] = weights + (at + r) * kScoreStride * (sizeof(float) / sizeof(Element));
        value.ahead_first = kGroupPanels * t / of;
        value.ahead_count = value.ahead == nullptr ? 0 : kGroupPanels * (t + 1) / of - value.ahead_first;
        value.sums = partial + at * stride_;
        run_tile_row<ValueTile<Keys>>(value, padded_dim_ / 16, rows, height, 0);
      });
    };
    // The panel behind the last that was decoded; of the kDecodedPanels that it is one of, those before it
    // are there too.
    uint32_t decoded_end = 0;
    const auto add_values = [&](uint32_t query_begin, uint32_t count) {
      if constexpr (Keys::kCoded) {
        const uint32_t begin = value.begin, end = value.end;
        const bool resume = value.resume;
        for (; value.begin < end; value.begin = value.end, value.resume = true) {
          const uint32_t begin_panel = value.begin / kPanelTokens;
          const uint32_t most = (begin_panel / kDecodedPanels + 1) * kDecodedPanels * kPanelTokens;
          value.end = end < most ? end : most;
          const uint32_t end_panel = (value.end + kPanelTokens - 1) / kPanelTokens;
          // Rows that follow each other mostly end in the same panel.
          for (uint32_t p = begin_panel; end_panel != decoded_end && p < end_panel; ++p) {
            panels_[p] = decoded_panel(p);
            decode_values(list.values[p], padded_dim_, decoded_panel(p));
          }
          decoded_end = end_panel;
          add_decoded(query_begin, count);
        }
        value.begin = begin;
        value.end = end;
        value.resume = resume;
      } else {
        add_decoded(query_begin, count);
      }
    };
    // Rows with the same number of whole panels: these together, then what is left of each row.
    const uint32_t first_place = first_panel * kPanelTokens;
    for (uint32_t begin = first, end = first; begin < end_row; begin = end) {
      const uint32_t whole = tile_places(tile, begin) / kPanelTokens * kPanelTokens;
      while (end < end_row && tile_places(tile, end) / kPanelTokens * kPanelTokens == whole) ++end;
      value.begin = first_place;
      value.end = whole;
      value.resume = false;
      value.ahead = begin == first && next.count != 0 ? next.keys : nullptr;
      if (whole != first_place) add_values((begin - first) * heads_, (end - begin) * heads_);
      value.begin = whole;
      value.resume = whole != first_place;
      value.ahead = nullptr;
      for (uint32_t row = begin; row < end; ++row) {
        value.end = tile_places(tile, row);
        if (value.end != whole) add_values((row - first) * heads_, heads_);
      }
    }
  }

  TANDEM_INLINE uint32_t tile_places(uint32_t tile, uint32_t row) const {
    const uint32_t places = places_of(row) - place_of(tile);
    return places < kTileKeys ? places : kTileKeys;
  }

  void write(const float* totals) const {
    for (uint32_t q = 0; q < group_.rows * heads_; ++q) {
      const size_t row = group_.first_row + q / heads_;
      const size_t head = first_head_ + q % heads_;
      write_total(totals + q * stride_, padded_dim_, args_.out,
                  row * args_.out.row_stride + head * args_.head_dim, args_.head_dim);
    }
  }

  const GqaArgs& args_;
  const AttentionGroup& group_;
  HeadChunks chunks_;
  PagedKvLayout layout_;
  uint32_t kv_head_ = 0, first_head_ = 0, heads_ = 0;  // of the chunk
  uint32_t padded_dim_;
  uint32_t columns_;                      // of a key
  std::byte* decoded_;                    // [kDecodedPanels] panels of keys or values, if coded
  float* scales_;                         // [keys, values][kTileKeys], if coded
  const std::byte* panels_[kTilePanels];  // those of a tile that are decoded
  size_t row_floats_, stride_, query_stride_;
  Element* query_;  // [rows * heads, query_stride_]
  float* scores_;   // [rows * heads, kScoreStride]; then the weights
  float* part_;     // [rows * heads, stride_]: of a tile
  float* total_;    // the same, folded
};

inline float* gqa_partials(const GqaArgs& args, const AttentionGroup& group, uint32_t chunk) {
  const size_t row_floats = size_t{gqa_chunks(args).per_chunk} * partial_floats(args.head_dim);
  return args.plan->partials + group.partials + size_t{chunk} * group.tiles * group.rows * row_floats;
}

template <class Keys, bool kBounded>
void gqa_task(const GqaArgs& args, size_t task, std::byte* scratch) {
  const AttentionGroup& group = args.plan->group_of_task(task);
  const uint32_t parts = (group.tiles + group.tiles_per_task - 1) / group.tiles_per_task;
  const uint32_t at = static_cast<uint32_t>(task) - group.first_task;
  const uint32_t chunk = at / parts * group.chunks_per_task, part = at % parts;
  GqaTask<Keys, kBounded> work(args, group, scratch);
  if (!group.spread()) return work.whole(chunk, chunk + group.chunks_per_task);
  const uint32_t begin = part * group.tiles_per_task, end = begin + group.tiles_per_task;
  work.part(chunk, begin, end < group.tiles ? end : group.tiles, gqa_partials(args, group, chunk));
}

template <bool kBounded>
void gqa_run_keys(const GqaArgs& args, size_t task, std::byte* scratch) {
  if (args.cache.dtype == DType::f32) {
    gqa_task<F32Keys, kBounded>(args, task, scratch);
  } else if (args.cache.dtype == DType::f8_e4m3) {
    gqa_task<CodedKeys, kBounded>(args, task, scratch);
  } else {
    gqa_task<Bf16Keys, kBounded>(args, task, scratch);
  }
}
inline bool is_bounded(const GqaArgs& args) {
  return args.window != 0 || args.sinks != nullptr;
}
inline void gqa_run(const GqaArgs& args, size_t task, std::byte* scratch) {
  if (is_bounded(args)) return gqa_run_keys<true>(args, task, scratch);
  gqa_run_keys<false>(args, task, scratch);
}

inline void gqa_fold(const GqaArgs& args, size_t fold, std::byte* scratch) {
  const AttentionGroup& group = args.plan->group_of_fold(fold);
  const uint32_t chunk = static_cast<uint32_t>(fold) - group.first_fold;
  const float* partials = gqa_partials(args, group, chunk);
  if (is_bounded(args)) return GqaTask<F32Keys, true>(args, group, scratch).fold(chunk, partials);
  GqaTask<F32Keys, false>(args, group, scratch).fold(chunk, partials);
}

}  // namespace tandem::TANDEM_ISA_NAMESPACE
