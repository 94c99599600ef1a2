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
  pool.kept_.assign(num_blocks, false);
  pool.line_.resize(size_t{num_blocks} + 1);
  pool.line_.back() = {static_cast<int32_t>(num_blocks), static_cast<int32_t>(num_blocks)};
  return pool;
}

std::optional<int32_t> BlockPool::allocate() {
  if (!free_.empty()) {
    const int32_t block = free_.back();
    free_.pop_back();
    references_[static_cast<size_t>(block)] = 1;
    return block;
  }
  if (line_size_ == 0) return std::nullopt;
  const int32_t block = line_.back().after;
  leave_line(block);
  references_[static_cast<size_t>(block)] = 1;
  kept_[static_cast<size_t>(block)] = false;
  --num_kept_;
  if (on_reuse_) on_reuse_(block);
  return block;
}

void BlockPool::release(int32_t block) {
  assert(block >= 0 && static_cast<uint32_t>(block) < num_blocks_);
  uint32_t& references = references_[static_cast<size_t>(block)];
  assert(references > 0);
  if (--references > 0) return;
  if (is_kept(block)) {
    stand_in_line(block);
  } else {
    free_.push_back(block);
  }
}

void BlockPool::add_reference(int32_t block) {
  assert(block >= 0 && static_cast<uint32_t>(block) < num_blocks_);
  uint32_t& references = references_[static_cast<size_t>(block)];
  assert(references > 0 || is_kept(block));
  if (references++ == 0) leave_line(block);
}

void BlockPool::keep(int32_t block) {
  assert(!is_free(block));
  if (is_kept(block)) return;
  kept_[static_cast<size_t>(block)] = true;
  ++num_kept_;
}

void BlockPool::forget(int32_t block) {
  if (!is_kept(block)) return;
  kept_[static_cast<size_t>(block)] = false;
  --num_kept_;
  if (!is_free(block)) return;
  leave_line(block);
  free_.push_back(block);
}

void BlockPool::stand_in_line(int32_t block) {
  const auto head = static_cast<int32_t>(num_blocks_);
  const int32_t last = line_.back().before;
  line_[static_cast<size_t>(block)] = {last, head};
  line_[static_cast<size_t>(last)].after = block;
  line_.back().before = block;
  ++line_size_;
}

void BlockPool::leave_line(int32_t block) {
  const Link link = line_[static_cast<size_t>(block)];
  line_[static_cast<size_t>(link.before)].after = link.after;
  line_[static_cast<size_t>(link.after)].before = link.before;
  --line_size_;
}

std::vector<int32_t> BlockPool::line_from_last() const {
  std::vector<int32_t> blocks;
  blocks.reserve(line_size_);
  for (int32_t block = line_.back().before; block != static_cast<int32_t>(num_blocks_);
       block = line_[static_cast<size_t>(block)].before)
    blocks.push_back(block);
  return blocks;
}

std::span<std::byte> BlockPool::bytes_of(int32_t block, size_t layer) {
  const size_t at = static_cast<size_t>(block) * spec_.bytes_of_all_layers() + layer * spec_.bytes_per_block;
  return std::span(memory_.data(), memory_.size()).subspan(at, spec_.bytes_per_block);
}

}  // namespace tandem
