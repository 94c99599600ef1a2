#include "kernels/attention_plan.h"

#include <algorithm>

#include "kernels/attention_shape.h"

namespace tandem {
namespace {

// Partial results of one run. Groups that do not fit are not spread. A batch of one with 32 heads of 128 needs
// 1.2 MiB for 32 K tokens. Memory that is never written is never taken.
constexpr size_t kPartialBytes = size_t{16} << 20;
// Tasks that one thread should have at least: with fewer the last one to end is waited for.
constexpr uint64_t kTasksPerThread = 4;
constexpr size_t kFirstGroups = 1024;

AttentionShape shape_of(const GqaArgs& args) {
  const HeadChunks chunks = gqa_chunks(args);
  return {args.num_kv_heads * chunks.count, std::max(1u, gqa_most_queries(args) / chunks.per_chunk),
          size_t{chunks.per_chunk} * partial_floats(args.head_dim)};
}
uint32_t tiles_of(const GqaArgs& args, uint32_t position) {
  return gqa_tiles(args, position);
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
  for (uint32_t row = 0; row < args.rows.size(); ++row) {
    const AttentionRow& at = args.rows[row];
    AttentionGroup* last = groups_.empty() ? nullptr : &groups_.back();
    const uint32_t tiles = tiles_of(args, at.position);
    if (last != nullptr && last->rows < shape.most_rows &&
        args.rows[last->first_row].block_table == at.block_table &&
        args.rows[last->first_row].position + last->rows == at.position) {
      ++last->rows;
      last->tiles = tiles;
    } else {
      groups_.push_back({.first_row = row, .rows = 1, .tiles = tiles});
    }
    work += tiles;
  }
  const uint64_t most =
      threads_ == 1 ? UINT64_MAX : work * shape.chunks / (kTasksPerThread * static_cast<uint64_t>(threads_));
  size_t partials = 0;
  for (AttentionGroup& group : groups_) {
    group.tiles_per_task = group.tiles;
    group.first_task = plan_.tasks;
    group.first_fold = plan_.folds;
    const size_t floats = shape.row_floats * group.rows * group.tiles * shape.chunks;
    if (group.tiles > 1 && uint64_t{group.tiles} * group.rows > most &&
        (partials + floats) * sizeof(float) <= partials_.size()) {
      group.tiles_per_task = static_cast<uint32_t>(std::max<uint64_t>(1, most / group.rows));
      group.partials = partials;
      partials += floats;
      plan_.folds += shape.chunks;
    }
    plan_.tasks += shape.chunks * ((group.tiles + group.tiles_per_task - 1) / group.tiles_per_task);
  }
  plan_.groups = groups_;
  plan_.partials = partials_.as<float>();
  return plan_;
}

const AttentionPlan& AttentionPlanner::plan(const GqaArgs& args) {
  return make(args);
}
const AttentionPlan& AttentionPlanner::plan(const MlaArgs&) {
  return plan_ = {};
}
const AttentionPlan& AttentionPlanner::plan(const IndexSelectArgs&) {
  return plan_ = {};
}
const AttentionPlan& AttentionPlanner::plan(const CompressedAttentionArgs&) {
  return plan_ = {};
}

}  // namespace tandem
