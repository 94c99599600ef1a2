// AttentionPlan: how the rows of a gqa or mla kernel are cut into tasks. The keys of a sequence form tiles at
// fixed places from its first token on, and a row's result is folded from its tiles' partial results in
// order. So its bits depend on its own keys alone: not on the plan, and the plan may depend on anything: on
// the number of threads, for one.
//
// Consecutive rows of one sequence go together: a group reads each key once. Where one task for all tiles of
// a group would be a large part of the whole work, its tiles are spread over several tasks, which leave
// their partial results in the workspace for a second run that folds them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/buffer.h"
#include "base/result.h"

namespace tandem {

struct GqaArgs;
struct MlaArgs;
struct ExpandedMlaArgs;
struct IndexSelectArgs;
struct CompressedAttentionArgs;

struct AttentionGroup {
  uint32_t first_row = 0, rows = 0;  // consecutive positions of one sequence
  uint32_t first_tile = 0;           // of the first row; the others' is not before it
  uint32_t tiles = 0;                // from there to the last row's last; the others' is not behind it
  uint32_t tiles_per_task = 0;       // tiles: not spread
  uint32_t chunks_per_task = 1;      // divides chunks; 1 if spread
  uint32_t first_task = 0;           // of chunks / chunks_per_task * ceil(tiles / tiles_per_task)
  uint32_t first_fold = 0;           // of chunks, if spread
  size_t partials = 0;               // where its partial results begin, in floats: [chunk][tile][row]

  [[gnu::always_inline]] bool spread() const { return tiles_per_task < tiles; }
};

// What a kernel tells the planner.
struct AttentionShape {
  uint32_t chunks = 1;     // of heads, which are tasks of their own
  uint32_t most_rows = 1;  // of a group
  size_t row_floats = 0;   // the partial result of one row, chunk and tile
  bool apart = false;      // chunks share no keys: a task never has several
};

struct AttentionPlan {
  std::span<const AttentionGroup> groups;
  float* partials = nullptr;
  uint32_t tasks = 0, folds = 0;

  // The group of a task, or of a fold.
  [[gnu::always_inline]] const AttentionGroup& group_of_task(size_t task) const {
    return last_at_most<&AttentionGroup::first_task>(task);
  }
  [[gnu::always_inline]] const AttentionGroup& group_of_fold(size_t fold) const {
    // Groups that are not spread have the number of the next that is.
    return last_at_most<&AttentionGroup::first_fold>(fold);
  }

 private:
  template <uint32_t AttentionGroup::*First>
  [[gnu::always_inline]] const AttentionGroup& last_at_most(size_t number) const {
    const AttentionGroup* groups_data = groups.data();
    size_t low = 0, high = groups.size();
    while (high - low > 1) {
      const size_t middle = (low + high) / 2;
      if (groups_data[middle].*First <= number) {
        low = middle;
      } else {
        high = middle;
      }
    }
    return groups_data[low];
  }
};

// Owns the plan and the workspace of one runner; used by its owner's thread. Allocates only when a step has
// more groups than any before.
class AttentionPlanner {
 public:
  static Result<AttentionPlanner> create(int threads);
  // Valid until the next call.
  const AttentionPlan& plan(const GqaArgs& args);
  const AttentionPlan& plan(const MlaArgs& args);
  const AttentionPlan& plan(const ExpandedMlaArgs& args);
  const AttentionPlan& plan(const IndexSelectArgs& args);
  const AttentionPlan& plan(const CompressedAttentionArgs& args);

 private:
  template <class Args>
  const AttentionPlan& make(const Args& args);

  int threads_ = 1;
  OwnedBuffer partials_;
  std::vector<AttentionGroup> groups_;
  AttentionPlan plan_;
};

}  // namespace tandem
