// StatePools: the memory of all state groups of a model, one BlockPool each. Sequence states and snapshots
// point to it: it outlives them and does not move. One thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "attention/block_pool.h"
#include "program/state_caches.h"

namespace tandem {

// How far a sequence can always go back: what retained groups hold beyond their retention. Larger than any
// step of a decoding sequence writes (the last token and a block of drafts), small beside a window.
inline constexpr uint32_t kRollbackSlack = 16;

class StatePools {
 public:
  // `num_blocks` [groups]. invalid_argument: no group, a block size that does not divide kStateAlignment, a
  // group without blocks or layers, each named. resource_exhausted: the memory.
  static Result<StatePools> create(std::span<const StateGroupSpec> groups,
                                   std::span<const uint32_t> num_blocks,
                                   uint32_t rollback_slack = kRollbackSlack);

  uint32_t num_groups() const { return static_cast<uint32_t>(pools_.size()); }
  BlockPool& pool(uint32_t group) { return pools_[group]; }
  const BlockPool& pool(uint32_t group) const { return pools_[group]; }
  const StateCaches& caches() const { return caches_; }
  size_t bytes() const;
  uint32_t rollback_slack() const { return rollback_slack_; }

  // The longest sequence that can live here alone. A group that retains a few tokens does not bound it, if it
  // has blocks for what one sequence holds of it.
  uint64_t max_sequence_tokens() const;
  // Tokens that a sequence without blocks could take at once now.
  uint64_t free_tokens() const;
  // The group whose use says how full the pools are: of those that keep everything the one that holds the
  // fewest tokens.
  const BlockPool& fullest_by_design() const;

 private:
  std::vector<BlockPool> pools_;
  StateCaches caches_;
  uint32_t rollback_slack_ = 0;
};

// The number of the first block of a sequence that a row at `position` or later can reach.
inline uint32_t first_reached_block(const StateGroupSpec& spec, uint32_t position) {
  if (spec.keeps_all() || position <= spec.retain_tokens) return 0;
  return (position - spec.retain_tokens) / spec.tokens_per_block;
}

// Blocks of a group that a sequence holds at most while it goes on row by row: what its retention and the
// slack reach, and the block that is being written.
uint64_t retained_blocks(const StateGroupSpec& spec, uint32_t rollback_slack);

}  // namespace tandem
