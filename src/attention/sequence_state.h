// SequenceState: what one sequence keeps between steps: its blocks of every state group and how many tokens
// they hold. One thread. The block tables do not move, so a step may point into them.
//
// Nothing is ever copied: going back changes the length and gives blocks back, because a group with a
// retention keeps its raw inputs for kRollbackSlack tokens longer than any row can reach them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "attention/state_pools.h"
#include "attention/state_snapshot.h"
#include "base/result.h"

namespace tandem {

class SequenceState {
 public:
  // The pools outlive the state. `max_tokens`: the longest that the sequence can become.
  SequenceState(StatePools& pools, uint32_t max_tokens);
  ~SequenceState() { clear(); }
  SequenceState(const SequenceState&) = delete;
  SequenceState& operator=(const SequenceState&) = delete;

  // Blocks for positions [length(), tokens), and in the groups that keep everything up to `ahead` where that
  // is more (a prompt that is computed in chunks). resource_exhausted takes nothing, of any group.
  // out_of_range: beyond max_tokens.
  Status reserve(uint32_t tokens, uint32_t ahead = 0);
  // Whether an empty state would get blocks for so many tokens now.
  bool could_reserve(uint32_t tokens) const;
  // The next `tokens` positions, reserved before, are now written.
  void advance(uint32_t tokens);
  // Gives back what no row from length() - rollback_slack() on can reach. Not part of `advance`: a drafter
  // still goes over the rows of a step when it has ended. The next `reserve` does it at the latest.
  void trim();

  uint32_t length() const { return length_; }  // tokens written
  // Entries of blocks that were given back are -1.
  std::span<const int32_t> block_table(uint32_t group = 0) const { return groups_[group].table; }
  uint32_t num_groups() const { return static_cast<uint32_t>(groups_.size()); }
  bool holds_blocks() const;

  // A point to come back to: rollback forgets every token written since and frees the blocks that only they
  // used. Always possible to 0, to any length since the last trim, and up to the pools' rollback_slack()
  // behind the length at that trim. out_of_range, with nothing changed: further back than a group's blocks
  // reach, or into a block that a snapshot or another sequence shares; the sequence must be computed again.
  uint32_t mark() const { return length_; }
  Status rollback(uint32_t mark);
  // Gives every block back; the sequence must be computed again.
  void clear();

  // References to what continues from `position`, at most length(). invalid_argument: not a multiple of what
  // every group asks for (snapshot_every, its blocks). out_of_range: a group holds it no more.
  Result<StateSnapshot> snapshot(uint32_t position) const;
  // An empty state becomes one of snapshot.length() tokens. invalid_argument: it is not empty, or the
  // snapshot is of other pools. out_of_range: beyond max_tokens.
  Status restore(const StateSnapshot& snapshot);

  // Blocks that somebody else has written, from number `first` of the sequence on.
  struct SharedBlocks {
    uint32_t first = 0;
    std::span<const int32_t> blocks;
  };
  // An empty state becomes one of `tokens` tokens in these blocks, [groups]; it is one more owner of each.
  // `tokens` is a block boundary of every group. Errors as of restore.
  Status share(uint32_t tokens, std::span<const SharedBlocks> groups);

 private:
  struct Group {
    std::vector<int32_t> table;  // [blocks]; -1 before `first`
    uint32_t first = 0;          // the first block that is held
  };
  // first_reached_block of a group.
  uint32_t first_reached(uint32_t group, uint32_t position) const;
  // Gives back the blocks of a group from number `count` on.
  void shrink(uint32_t group, size_t count);

  StatePools* pools_;
  uint32_t max_tokens_;
  uint32_t length_ = 0;
  std::vector<Group> groups_;
};

}  // namespace tandem
