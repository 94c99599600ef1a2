#include "attention/sequence_state.h"

#include <cassert>
#include <string>

namespace tandem {

SequenceState::SequenceState(BlockPool& pool, uint32_t max_tokens) : pool_(&pool), max_tokens_(max_tokens) {
  blocks_.reserve(pool.blocks_for(max_tokens));
}

Status SequenceState::reserve(uint32_t tokens) {
  if (tokens > max_tokens_) {
    return make_error(ErrorCode::out_of_range, "a sequence of " + std::to_string(tokens) +
                                                   " tokens; its limit is " + std::to_string(max_tokens_));
  }
  const size_t wanted = pool_->blocks_for(tokens);
  if (wanted <= blocks_.size()) return {};
  if (wanted - blocks_.size() > pool_->free_blocks()) {
    return make_error(ErrorCode::resource_exhausted, "KV pool: " + std::to_string(wanted - blocks_.size()) +
                                                         " blocks wanted, " +
                                                         std::to_string(pool_->free_blocks()) + " free");
  }
  while (blocks_.size() < wanted) {
    const auto block = pool_->allocate();
    if (!block) return make_error(ErrorCode::internal, "KV pool: fewer free blocks than it says");
    blocks_.push_back(*block);
  }
  return {};
}

void SequenceState::advance(uint32_t tokens) {
  length_ += tokens;
  assert(pool_->blocks_for(length_) <= blocks_.size());
}

void SequenceState::rollback(uint32_t mark) {
  assert(mark <= length_);
  length_ = mark;
  const size_t kept = pool_->blocks_for(length_);
  while (blocks_.size() > kept) {
    pool_->release(blocks_.back());
    blocks_.pop_back();
  }
}

}  // namespace tandem
