// How many blocks each state group's pool gets, so that all run out at about the same number of tokens. Pure.
//
// Groups that keep everything need blocks for each token; groups with a retention for each sequence, and
// while a prefill step runs for its rows too.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "attention/state_pools.h"

namespace tandem {

struct StatePoolLimits {
  uint32_t max_num_seqs = 0;            // running at once
  uint32_t max_num_batched_tokens = 0;  // rows of one prefill step
  uint32_t max_context_tokens = 0;      // of one sequence
  uint32_t rollback_slack = kRollbackSlack;
};

// [groups]: blocks for `tokens` tokens in at most max_num_seqs sequences.
std::vector<uint64_t> blocks_for_tokens(std::span<const StateGroupSpec> groups, uint64_t tokens,
                                        const StatePoolLimits& limits);
// Of these blocks, in all layers.
uint64_t bytes_for_tokens(std::span<const StateGroupSpec> groups, uint64_t tokens,
                          const StatePoolLimits& limits);

// The most tokens whose blocks take at most `bytes`: whole blocks, at least one, at most what all sequences
// could fill.
uint64_t tokens_within(std::span<const StateGroupSpec> groups, uint64_t bytes, const StatePoolLimits& limits);

}  // namespace tandem
