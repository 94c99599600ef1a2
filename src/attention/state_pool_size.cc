#include "attention/state_pool_size.h"

#include <algorithm>

namespace tandem {
namespace {

// The grain of pool sizes: the largest block of a group that keeps everything, whose size all others divide.
uint64_t grain_of(std::span<const StateGroupSpec> groups) {
  uint64_t grain = 1;
  for (const StateGroupSpec& spec : groups) {
    if (spec.keeps_all()) grain = std::max<uint64_t>(grain, spec.tokens_per_block);
  }
  return grain;
}

uint64_t retained_pool(const StateGroupSpec& spec, uint64_t tokens, const StatePoolLimits& limits) {
  const uint64_t sequences = limits.max_num_seqs;
  // Rows of a step cost each sequence a started block more.
  const uint64_t held = sequences * (retained_blocks(spec, limits.rollback_slack) + 1) +
                        spec.blocks_for(limits.max_num_batched_tokens);
  // No sequence holds more than it has tokens.
  const uint64_t filled =
      std::min(spec.blocks_for(tokens) + sequences, sequences * spec.blocks_for(limits.max_context_tokens));
  return std::max<uint64_t>(1, std::min(held, filled));
}

}  // namespace

std::vector<uint64_t> blocks_for_tokens(std::span<const StateGroupSpec> groups, uint64_t tokens,
                                        const StatePoolLimits& limits) {
  const uint64_t grain = grain_of(groups);
  const uint64_t rounded = (tokens + grain - 1) / grain * grain;
  std::vector<uint64_t> blocks;
  for (const StateGroupSpec& spec : groups)
    blocks.push_back(spec.keeps_all() ? spec.blocks_for(rounded) : retained_pool(spec, rounded, limits));
  return blocks;
}

uint64_t bytes_for_tokens(std::span<const StateGroupSpec> groups, uint64_t tokens,
                          const StatePoolLimits& limits) {
  const std::vector<uint64_t> blocks = blocks_for_tokens(groups, tokens, limits);
  uint64_t bytes = 0;
  for (size_t group = 0; group < groups.size(); ++group)
    bytes += blocks[group] * groups[group].bytes_of_all_layers();
  return bytes;
}

uint64_t tokens_within(std::span<const StateGroupSpec> groups, uint64_t bytes,
                       const StatePoolLimits& limits) {
  const uint64_t grain = grain_of(groups);
  // Bytes grow with the tokens, so halving finds the last count of grains that fits.
  uint64_t fits = 1;
  uint64_t beyond = (uint64_t{limits.max_context_tokens} + grain - 1) / grain * limits.max_num_seqs + 1;
  while (beyond - fits > 1) {
    const uint64_t middle = fits + (beyond - fits) / 2;
    (bytes_for_tokens(groups, middle * grain, limits) <= bytes ? fits : beyond) = middle;
  }
  return fits * grain;
}

}  // namespace tandem
