#include "attention/sequence_state.h"

#include <algorithm>
#include <cassert>
#include <string>

namespace tandem {

SequenceState::SequenceState(StatePools& pools, uint32_t max_tokens)
    : pools_(&pools), max_tokens_(max_tokens), groups_(pools.num_groups()) {
  for (uint32_t group = 0; group < groups_.size(); ++group)
    groups_[group].table.reserve(pools.pool(group).blocks_for(max_tokens));
}

Status SequenceState::reserve(uint32_t tokens, uint32_t ahead) {
  trim();
  const uint32_t most = std::max(tokens, ahead);
  if (most > max_tokens_) {
    return make_error(ErrorCode::out_of_range, "a sequence of " + std::to_string(most) +
                                                   " tokens; its limit is " + std::to_string(max_tokens_));
  }
  const auto missing = [&](uint32_t group) -> size_t {
    const BlockPool& pool = pools_->pool(group);
    const size_t wanted = pool.blocks_for(pool.spec().keeps_all() ? most : tokens);
    const size_t have = groups_[group].table.size();
    return wanted > have ? wanted - have : 0;
  };
  for (uint32_t group = 0; group < groups_.size(); ++group) {
    const BlockPool& pool = pools_->pool(group);
    if (missing(group) > pool.free_blocks()) {
      return make_error(ErrorCode::resource_exhausted,
                        "KV pool (" + pool.spec().name + "): " + std::to_string(missing(group)) +
                            " blocks wanted, " + std::to_string(pool.free_blocks()) + " free");
    }
  }
  for (uint32_t group = 0; group < groups_.size(); ++group) {
    for (size_t left = missing(group); left > 0; --left) {
      const auto block = pools_->pool(group).allocate();
      if (!block) return make_error(ErrorCode::internal, "KV pool: fewer free blocks than it says");
      groups_[group].table.push_back(*block);
    }
  }
  return {};
}

bool SequenceState::could_reserve(uint32_t tokens) const {
  for (uint32_t group = 0; group < groups_.size(); ++group) {
    const BlockPool& pool = pools_->pool(group);
    const uint64_t wanted = pool.blocks_for(tokens);
    const uint64_t most =
        pool.spec().keeps_all() ? wanted : retained_blocks(pool.spec(), pools_->rollback_slack()) + 1;
    if (std::min(wanted, most) > pool.free_blocks()) return false;
  }
  return true;
}

void SequenceState::advance(uint32_t tokens) {
  length_ += tokens;
  for (uint32_t group = 0; group < groups_.size(); ++group)
    assert(pools_->pool(group).blocks_for(length_) <= groups_[group].table.size());
}

void SequenceState::trim() {
  const uint32_t slack = pools_->rollback_slack();
  for (uint32_t index = 0; index < groups_.size(); ++index) {
    Group& group = groups_[index];
    BlockPool& pool = pools_->pool(index);
    const uint32_t reached = length_ > slack ? first_reached(index, length_ - slack) : 0;
    for (; group.first < reached; ++group.first) {
      pool.release(group.table[group.first]);
      group.table[group.first] = -1;
    }
  }
}

bool SequenceState::holds_blocks() const {
  return std::ranges::any_of(groups_, [](const Group& group) { return !group.table.empty(); });
}

uint32_t SequenceState::first_reached(uint32_t group, uint32_t position) const {
  return first_reached_block(pools_->pool(group).spec(), position);
}

void SequenceState::shrink(uint32_t group, size_t count) {
  std::vector<int32_t>& table = groups_[group].table;
  while (table.size() > count) {
    if (table.back() >= 0) pools_->pool(group).release(table.back());
    table.pop_back();
  }
  if (table.empty()) groups_[group].first = 0;
}

Status SequenceState::rollback(uint32_t mark) {
  if (mark == 0) {
    clear();
    return {};
  }
  const auto refuse = [&](uint32_t group, const std::string& why) {
    return make_error(ErrorCode::out_of_range, "rollback from " + std::to_string(length_) + " to " +
                                                   std::to_string(mark) + " tokens: " + why + " (" +
                                                   pools_->pool(group).spec().name +
                                                   "); compute the sequence again");
  };
  if (mark > length_) return refuse(0, "that is not back");
  for (uint32_t group = 0; group < groups_.size(); ++group) {
    const BlockPool& pool = pools_->pool(group);
    if (first_reached(group, mark) < groups_[group].first) return refuse(group, "its blocks are given back");
    const uint32_t tokens_per_block = pool.spec().tokens_per_block;
    if (mark % tokens_per_block != 0 && pool.is_shared(groups_[group].table[mark / tokens_per_block]))
      return refuse(group, "others share the block that it would write");
  }
  length_ = mark;
  for (uint32_t group = 0; group < groups_.size(); ++group)
    shrink(group, pools_->pool(group).blocks_for(mark));
  return {};
}

void SequenceState::clear() {
  length_ = 0;
  for (uint32_t group = 0; group < groups_.size(); ++group) shrink(group, 0);
}

Result<StateSnapshot> SequenceState::snapshot(uint32_t position) const {
  const auto refuse = [&](ErrorCode code, uint32_t group, const std::string& why) {
    return make_error(code, "snapshot at " + std::to_string(position) + " tokens: " + why + " (" +
                                pools_->pool(group).spec().name + ")");
  };
  if (position == 0 || position > length_) {
    return make_error(ErrorCode::invalid_argument, "snapshot at " + std::to_string(position) +
                                                       " tokens of a sequence of " + std::to_string(length_));
  }
  for (uint32_t group = 0; group < groups_.size(); ++group) {
    const StateGroupSpec& spec = pools_->pool(group).spec();
    const uint32_t every = std::max(spec.snapshot_every, spec.tokens_per_block);
    if (position % every != 0)
      return refuse(ErrorCode::invalid_argument, group, "multiples of " + std::to_string(every));
  }
  for (uint32_t group = 0; group < groups_.size(); ++group) {
    if (first_reached(group, position) < groups_[group].first)
      return refuse(ErrorCode::out_of_range, group, "its blocks are given back");
  }
  StateSnapshot made;
  made.pools_ = pools_;
  made.length_ = position;
  for (uint32_t group = 0; group < groups_.size(); ++group) {
    StateSnapshot::Group& part = made.groups_.emplace_back();
    part.first = first_reached(group, position);
    const std::span<const int32_t> table = groups_[group].table;
    const uint32_t end = position / pools_->pool(group).spec().tokens_per_block;
    part.blocks.assign(table.begin() + part.first, table.begin() + end);
    for (const int32_t block : part.blocks) pools_->pool(group).add_reference(block);
  }
  return made;
}

Status SequenceState::restore(const StateSnapshot& snapshot) {
  if (snapshot.pools_ != pools_) {
    return make_error(ErrorCode::invalid_argument,
                      "a snapshot goes into an empty sequence state of the pools it was taken from");
  }
  std::vector<SharedBlocks> parts;
  parts.reserve(snapshot.groups_.size());
  for (const StateSnapshot::Group& part : snapshot.groups_) parts.push_back({part.first, part.blocks});
  return share(snapshot.length_, parts);
}

Status SequenceState::share(uint32_t tokens, std::span<const SharedBlocks> groups) {
  if (length_ != 0 || holds_blocks()) {
    return make_error(ErrorCode::invalid_argument,
                      "a snapshot goes into an empty sequence state of the pools it was taken from");
  }
  if (tokens > max_tokens_) {
    return make_error(ErrorCode::out_of_range, "a snapshot of " + std::to_string(tokens) +
                                                   " tokens; the sequence's limit is " +
                                                   std::to_string(max_tokens_));
  }
  length_ = tokens;
  for (uint32_t group = 0; group < groups_.size(); ++group) {
    const SharedBlocks& part = groups[group];
    Group& mine = groups_[group];
    mine.table.assign(part.first, -1);
    mine.table.insert(mine.table.end(), part.blocks.begin(), part.blocks.end());
    mine.first = part.first;
    for (const int32_t block : part.blocks) pools_->pool(group).add_reference(block);
  }
  return {};
}

}  // namespace tandem
