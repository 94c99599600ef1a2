// GrammarStacks: where texts may stand in a grammar. A position is a set of stacks, one for each way to read
// the text so far; a stack is a state and the calls that wait for its rule to end. Positions are numbered as
// they turn up, and so is what a byte makes of them: a second walk over the same text is a table look-up.
//
// Two bounds keep a text from costing more the longer it gets: readings beyond kMaxFrames of one place, and
// calls beyond kMaxDepth inside each other, are given up. A text that needs them counts as none of the
// grammar's.
//
// One thread at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "grammar/grammar_network.h"

namespace tandem {

class GrammarStacks {
 public:
  using Position = uint32_t;
  // No text continues from here.
  static constexpr Position kDead = 0;
  // Programming languages in GBNF have some dozens; what has more is ambiguous without end.
  static constexpr size_t kMaxFrames = 256;
  // JSON calls twice a level of nesting.
  static constexpr uint32_t kMaxDepth = 512;

  // A state in a call, `caller` being the frame to go on with when its rule has ended.
  struct Frame {
    uint32_t state = 0;
    uint32_t caller = 0;
    bool operator==(const Frame&) const = default;
  };
  // Callers that are none: below kWhole stands the end of the text, below kOpen what is not known (the walk
  // tells where it would go on there).
  static constexpr uint32_t kWhole = 0, kOpen = 1;

  explicit GrammarStacks(GrammarNetwork network);

  Position start() const { return start_; }
  // The position of one state whose rule was called by `caller`.
  Position position_of(Frame frame);
  // The same of the frame itself: where reading goes on when the rule that it called has ended.
  Position return_to(uint32_t frame);

  Position step(Position position, uint8_t byte) {
    const Rows& rows = rows_[position];
    if (rows.next != nullptr && (*rows.next)[byte] != kUnknown) return (*rows.next)[byte];
    return compute_step(position, byte);
  }
  // The frames of a position that can consume a byte.
  std::span<const uint32_t> frames(Position position) const { return rows_[position].frames; }
  // The bottom was reached: the text may end here (kWhole), or its caller would go on (kOpen).
  bool has_ended(Position position) const { return rows_[position].ended; }
  Frame frame(uint32_t number) const { return frames_[number]; }

  // About what positions, frames and tables take.
  size_t memory_bytes() const { return memory_bytes_; }

 private:
  static constexpr uint32_t kUnknown = UINT32_MAX;
  struct Rows {
    std::vector<uint32_t> frames;  // ascending
    bool ended = false;
    std::unique_ptr<std::array<Position, 256>> next;
  };

  uint32_t number_of(Frame frame);
  Position compute_step(Position position, uint8_t byte);
  // The position of all that `work_` reaches without a byte; empties `work_`.
  Position close();

  GrammarNetwork network_;
  std::vector<Frame> frames_;
  std::vector<uint32_t> depths_;  // [frames]: calls below each
  std::unordered_map<uint64_t, uint32_t> frame_numbers_;
  std::vector<Rows> rows_;
  std::unordered_multimap<uint64_t, Position> positions_;  // by hash
  std::vector<uint32_t> work_, found_;
  std::vector<bool> is_in_work_;  // [frames]
  size_t memory_bytes_ = 0;
  Position start_ = kDead;
};

}  // namespace tandem
