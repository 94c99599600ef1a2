// SequenceState: what one sequence keeps between steps: its blocks and how many tokens they hold. One thread.
// The block table does not move between `reserve` calls, so a step may point into it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "attention/block_pool.h"
#include "base/result.h"

namespace tandem {

class SequenceState {
 public:
  // The pool outlives the state. `max_tokens`: the longest that the sequence can become.
  SequenceState(BlockPool& pool, uint32_t max_tokens);
  ~SequenceState() { clear(); }
  SequenceState(const SequenceState&) = delete;
  SequenceState& operator=(const SequenceState&) = delete;

  // Blocks for positions [0, tokens). resource_exhausted takes nothing. out_of_range: beyond max_tokens.
  Status reserve(uint32_t tokens);
  // The next `tokens` positions, reserved before, are now written.
  void advance(uint32_t tokens);

  uint32_t length() const { return length_; }  // tokens written
  std::span<const int32_t> block_table() const { return blocks_; }

  // A point to come back to: rollback forgets every token written since and frees the blocks that only they
  // used.
  uint32_t mark() const { return length_; }
  void rollback(uint32_t mark);
  // Gives every block back; the sequence must be computed again.
  void clear() { rollback(0); }

 private:
  BlockPool* pool_;
  uint32_t max_tokens_;
  uint32_t length_ = 0;
  std::vector<int32_t> blocks_;
};

}  // namespace tandem
