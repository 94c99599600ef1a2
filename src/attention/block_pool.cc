#include "attention/block_pool.h"

#include <cassert>
#include <string>

namespace tandem {

Result<BlockPool> BlockPool::create(const StateGroupSpec& spec, uint32_t num_blocks, uint32_t group,
                                    StateCaches& caches) {
  if (num_blocks == 0 || spec.tokens_per_block == 0 || spec.layers.empty()) {
    return make_error(ErrorCode::invalid_argument,
                      "KV pool (" + spec.name + "): no blocks; raise serving.kv_cache_tokens");
  }
  BlockPool pool;
  pool.spec_ = spec;
  pool.num_blocks_ = num_blocks;
  TANDEM_ASSIGN(pool.memory_, allocate_state_group(spec, group, num_blocks, caches));
  pool.free_.reserve(num_blocks);
  for (uint32_t block = num_blocks; block > 0; --block) pool.free_.push_back(static_cast<int32_t>(block - 1));
  pool.references_.assign(num_blocks, 0);
  return pool;
}

std::optional<int32_t> BlockPool::allocate() {
  if (free_.empty()) return std::nullopt;
  const int32_t block = free_.back();
  free_.pop_back();
  references_[static_cast<size_t>(block)] = 1;
  return block;
}

void BlockPool::release(int32_t block) {
  assert(block >= 0 && static_cast<uint32_t>(block) < num_blocks_);
  uint32_t& references = references_[static_cast<size_t>(block)];
  assert(references > 0);
  if (--references == 0) free_.push_back(block);
}

void BlockPool::add_reference(int32_t block) {
  assert(block >= 0 && static_cast<uint32_t>(block) < num_blocks_);
  assert(references_[static_cast<size_t>(block)] > 0);
  ++references_[static_cast<size_t>(block)];
}

}  // namespace tandem
