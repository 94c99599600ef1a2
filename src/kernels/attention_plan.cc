#include "kernels/attention_plan.h"

#include <algorithm>

#include "kernels/attention_shape.h"

namespace tandem {
namespace {

// Partial results of one run. Groups that do not fit are not spread. A batch of one with 32 heads of 128
// needs 1.2 MiB for 32 K tokens. Memory that is never written is never taken.
constexpr size_t kPartialBytes = size_t{16} << 20;
// Tasks that one thread should have at least: with fewer the last one to end is waited for.
constexpr uint64_t kTasksPerThread = 4;
constexpr size_t kFirstGroups = 1024;

AttentionShape shape_of(const GqaArgs& args) {
  const HeadChunks chunks = gqa_chunks(args);
  return {args.num_kv_heads * chunks.count, std::max(1u, gqa_most_queries(args) / chunks.per_chunk),
          size_t{chunks.per_chunk} * partial_floats(args.head_dim)};
}
std::span<const AttentionRow> rows_of(const GqaArgs& args) {
  return args.rows;
}
uint32_t first_tile_of(const GqaArgs& args, size_t row) {
  return gqa_first_tile(args, args.rows[row].position);
}
// The tile behind the last.
uint32_t tiles_of(const GqaArgs& args, size_t row) {
  return gqa_tiles(args, args.rows[row].position);
}

AttentionShape shape_of(const MlaArgs& args) {
  const HeadChunks chunks = mla_chunks(args);
  return {chunks.count, std::max(1u, mla_most_queries(args) / chunks.per_chunk),
          size_t{chunks.per_chunk} * (latent_padded_dim(args.latent_dim) + 16)};
}
std::span<const AttentionRow> rows_of(const MlaArgs& args) {
  return args.rows;
}
uint32_t tiles_of(const MlaArgs& args, size_t row) {
  return latent_tiles(args.rows[row].position + 1);
}

AttentionShape shape_of(const ExpandedMlaArgs& args) {
  return {args.num_heads, latent_most_queries(args.key_dim, args.value_dim, args.dtype),
          size_t{latent_padded_dim(args.value_dim)} + 16, true};
}
std::span<const AttentionRow> rows_of(const ExpandedMlaArgs& args) {
  return args.rows;
}
uint32_t tiles_of(const ExpandedMlaArgs& args, size_t row) {
  return latent_tiles(args.rows[row].position + 1);
}

AttentionShape shape_of(const IndexSelectArgs&) {
  return {1, 1, kLatentTileKeys};
}
std::span<const AttentionRow> rows_of(const IndexSelectArgs& args) {
  return args.rows;
}
uint32_t tiles_of(const IndexSelectArgs& args, size_t row) {
  return index_tiles(args, row);
}

AttentionShape shape_of(const CompressedAttentionArgs& args) {
  const HeadChunks chunks = compressed_chunks(args);
  return {chunks.count, 1, size_t{chunks.per_chunk} * (latent_padded_dim(args.head_dim) + 16)};
}
std::span<const AttentionRow> rows_of(const CompressedAttentionArgs& args) {
  return args.window_rows;
}
uint32_t tiles_of(const CompressedAttentionArgs& args, size_t row) {
  const CompressedKeys keys = compressed_keys(args, row);
  return latent_tiles(keys.window + keys.entries);
}

// The others have no windows, or count their tiles from the window's first key.
template <class Args>
uint32_t first_tile_of(const Args&, size_t) {
  return 0;
}

}  // namespace

Result<AttentionPlanner> AttentionPlanner::create(int threads) {
  AttentionPlanner planner;
  planner.threads_ = threads;
  if (threads > 1) {
    TANDEM_ASSIGN(planner.partials_, OwnedBuffer::allocate(kPartialBytes));
  }
  planner.groups_.reserve(kFirstGroups);
  return planner;
}

template <class Args>
const AttentionPlan& AttentionPlanner::make(const Args& args) {
  groups_.clear();
  plan_ = {};
  const AttentionShape shape = shape_of(args);
  uint64_t work = 0;  // of one chunk, in rows times tiles
  const std::span<const AttentionRow> rows = rows_of(args);
  for (uint32_t row = 0; row < rows.size(); ++row) {
    const AttentionRow& at = rows[row];
    AttentionGroup* last = groups_.empty() ? nullptr : &groups_.back();
    const uint32_t first_tile = first_tile_of(args, row), end = tiles_of(args, row);
    if (last != nullptr && last->rows < shape.most_rows &&
        rows[last->first_row].block_table == at.block_table &&
        rows[last->first_row].position + last->rows == at.position) {
      ++last->rows;
      last->tiles = end - last->first_tile;
    } else {
      groups_.push_back({.first_row = row, .rows = 1, .first_tile = first_tile, .tiles = end - first_tile});
    }
    work += end - first_tile;
  }
  const uint64_t most =
      threads_ == 1 ? UINT64_MAX : work * shape.chunks / (kTasksPerThread * static_cast<uint64_t>(threads_));
  size_t partials = 0;
  for (AttentionGroup& group : groups_) {
    group.tiles_per_task = group.tiles;
    // With all heads in one task the next one's keys are asked for in time.
    group.chunks_per_task =
        !shape.apart && groups_.size() >= kTasksPerThread * static_cast<uint64_t>(threads_) ? shape.chunks
                                                                                            : 1;
    group.first_task = plan_.tasks;
    group.first_fold = plan_.folds;
    const size_t floats = shape.row_floats * group.rows * group.tiles * shape.chunks;
    if (group.tiles > 1 && uint64_t{group.tiles} * group.rows > most &&
        (partials + floats) * sizeof(float) <= partials_.size()) {
      group.tiles_per_task = static_cast<uint32_t>(std::max<uint64_t>(1, most / group.rows));
      group.chunks_per_task = 1;
      group.partials = partials;
      partials += floats;
      plan_.folds += shape.chunks;
    }
    if (group.tiles == 0) continue;
    plan_.tasks += shape.chunks / group.chunks_per_task *
                   ((group.tiles + group.tiles_per_task - 1) / group.tiles_per_task);
  }
  plan_.groups = groups_;
  plan_.partials = partials_.as<float>();
  return plan_;
}

const AttentionPlan& AttentionPlanner::plan(const GqaArgs& args) {
  return make(args);
}
const AttentionPlan& AttentionPlanner::plan(const MlaArgs& args) {
  return make(args);
}
const AttentionPlan& AttentionPlanner::plan(const ExpandedMlaArgs& args) {
  return make(args);
}
const AttentionPlan& AttentionPlanner::plan(const IndexSelectArgs& args) {
  return make(args);
}
const AttentionPlan& AttentionPlanner::plan(const CompressedAttentionArgs& args) {
  return make(args);
}

}  // namespace tandem
