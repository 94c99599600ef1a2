#include "attention/state_pools.h"

#include <algorithm>
#include <limits>
#include <string>

namespace tandem {
namespace {

Status check_group(const StateGroupSpec& spec) {
  const auto refuse = [&spec](const std::string& message) {
    return make_error(ErrorCode::invalid_argument, "state group " + spec.name + ": " + message);
  };
  if (spec.tokens_per_block == 0 || kStateAlignment % spec.tokens_per_block != 0) {
    return refuse("blocks of " + std::to_string(spec.tokens_per_block) + " tokens; a divisor of " +
                  std::to_string(kStateAlignment) + " is needed");
  }
  if (spec.snapshot_every % spec.tokens_per_block != 0) {
    return refuse("kept states every " + std::to_string(spec.snapshot_every) +
                  " tokens; a multiple of its blocks of " + std::to_string(spec.tokens_per_block) +
                  " is needed");
  }
  return {};
}

}  // namespace

uint64_t retained_blocks(const StateGroupSpec& spec, uint32_t rollback_slack) {
  return spec.blocks_for(uint64_t{spec.retain_tokens} + rollback_slack) + 1;
}

Result<StatePools> StatePools::create(std::span<const StateGroupSpec> groups,
                                      std::span<const uint32_t> num_blocks, uint32_t rollback_slack) {
  if (groups.empty() || groups.size() != num_blocks.size()) {
    return make_error(ErrorCode::invalid_argument, std::to_string(num_blocks.size()) + " pool sizes for " +
                                                       std::to_string(groups.size()) + " state groups");
  }
  StatePools pools;
  pools.rollback_slack_ = rollback_slack;
  for (uint32_t group = 0; group < groups.size(); ++group) {
    TANDEM_TRY(check_group(groups[group]));
    TANDEM_ASSIGN(BlockPool pool, BlockPool::create(groups[group], num_blocks[group], group, pools.caches_));
    pools.pools_.push_back(std::move(pool));
  }
  return pools;
}

size_t StatePools::bytes() const {
  size_t sum = 0;
  for (const BlockPool& pool : pools_) sum += pool.bytes();
  return sum;
}

uint64_t StatePools::max_sequence_tokens() const {
  uint64_t tokens = std::numeric_limits<uint64_t>::max();
  for (const BlockPool& pool : pools_) {
    const StateGroupSpec& spec = pool.spec();
    if (!spec.keeps_all() && pool.num_blocks() >= retained_blocks(spec, rollback_slack_)) continue;
    tokens = std::min(tokens, uint64_t{pool.num_blocks()} * spec.tokens_per_block);
  }
  return tokens;
}

uint64_t StatePools::free_tokens() const {
  uint64_t tokens = std::numeric_limits<uint64_t>::max();
  for (const BlockPool& pool : pools_)
    tokens = std::min(tokens, uint64_t{pool.free_blocks()} * pool.spec().tokens_per_block);
  return tokens;
}

const BlockPool& StatePools::fullest_by_design() const {
  const BlockPool* chosen = &pools_[0];
  for (const BlockPool& pool : pools_) {
    if (!pool.spec().keeps_all()) continue;
    const auto tokens = [](const BlockPool& of) {
      return uint64_t{of.num_blocks()} * of.spec().tokens_per_block;
    };
    if (!chosen->spec().keeps_all() || tokens(pool) < tokens(*chosen)) chosen = &pool;
  }
  return *chosen;
}

}  // namespace tandem
