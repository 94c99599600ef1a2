#include "attention/block_pool.h"

#include <cassert>
#include <string>

namespace tandem {

Result<BlockPool> BlockPool::create(const StateGroupSpec& spec, uint32_t num_blocks, uint32_t group) {
  if (num_blocks == 0 || spec.tokens_per_block == 0 || spec.layers.empty()) {
    return make_error(ErrorCode::invalid_argument, "KV pool: no blocks; raise serving.kv_cache_tokens");
  }
  BlockPool pool;
  pool.spec_ = spec;
  pool.num_blocks_ = num_blocks;
  TANDEM_ASSIGN(pool.memory_, allocate_state_group(spec, group, num_blocks, pool.caches_));
  pool.free_.reserve(num_blocks);
  for (uint32_t block = num_blocks; block > 0; --block) pool.free_.push_back(static_cast<int32_t>(block - 1));
  pool.is_free_.assign(num_blocks, true);
  return pool;
}

std::optional<int32_t> BlockPool::allocate() {
  if (free_.empty()) return std::nullopt;
  const int32_t block = free_.back();
  free_.pop_back();
  is_free_[static_cast<size_t>(block)] = false;
  return block;
}

void BlockPool::release(int32_t block) {
  assert(block >= 0 && static_cast<uint32_t>(block) < num_blocks_ && !is_free_[static_cast<size_t>(block)]);
  is_free_[static_cast<size_t>(block)] = true;
  free_.push_back(block);
}

}  // namespace tandem
