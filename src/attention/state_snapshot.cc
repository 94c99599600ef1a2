#include "attention/state_snapshot.h"

namespace tandem {

size_t StateSnapshot::num_blocks() const {
  size_t sum = 0;
  for (const Group& group : groups_) sum += group.blocks.size();
  return sum;
}

void StateSnapshot::release() {
  for (uint32_t group = 0; group < groups_.size(); ++group) {
    for (const int32_t block : groups_[group].blocks) pools_->pool(group).release(block);
  }
  groups_.clear();
  length_ = 0;
}

}  // namespace tandem
