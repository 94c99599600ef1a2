#include "tokenizer/regex.h"

#include <fmt/format.h>
#include <algorithm>

namespace tandem {

using Op = RegexInstruction::Op;

// A pattern of ten alternatives takes some tens of steps for a character; 512 leaves room and still bounds a
// hostile pair of pattern and text to about a second for a megabyte.
constexpr uint64_t kStepsPerCharacter = 512;
constexpr uint64_t kStepsAlways = 100'000;

void RegexSearch::reset(std::span<const char32_t> text) {
  text_ = text;
  std::fill(exhausted_.begin(), exhausted_.end(), Exhausted{});
  steps_left_ = kStepsAlways + kStepsPerCharacter * text.size();
}

Result<RegexSearch::Match> RegexSearch::find(size_t from) {
  for (size_t begin = from; begin < text_.size(); ++begin) {
    if (!regex_.first_.contains(text_[begin])) continue;
    size_t end = 0;
    stack_.clear();
    const bool found = run(0, begin, end);
    if (steps_left_ == 0) {
      return make_error(
          ErrorCode::resource_exhausted,
          fmt::format("pre-tokenizer pattern \"{}\" takes more than {} steps a character on a text of {} "
                      "characters; break the text up",
                      regex_.pattern_, kStepsPerCharacter, text_.size()));
    }
    if (found) return Match{begin, end, true};
  }
  return Match{};
}

bool RegexSearch::backtrack(size_t base, uint32_t& pc, size_t& position) {
  while (stack_.size() > base) {
    Frame& frame = stack_.back();
    if (frame.run == kNoRun) {
      pc = frame.pc;
      position = frame.position;
      stack_.pop_back();
      return true;
    }
    if (frame.position > frame.low) {
      pc = frame.pc;
      position = --frame.position;
      return true;
    }
    exhausted_[regex_.program_[frame.run].slot] = {frame.low, frame.stop};
    stack_.pop_back();
  }
  return false;
}

bool RegexSearch::run(uint32_t pc, size_t position, size_t& end) {
  const size_t base = stack_.size();
  const auto spend = [&](uint64_t steps) { steps_left_ -= std::min(steps_left_, steps); };
  while (true) {
    spend(1);
    if (steps_left_ == 0) return false;
    const RegexInstruction& instruction = regex_.program_[pc];
    bool ok = true;
    switch (instruction.op) {
      case Op::match:
        end = position;
        stack_.resize(base);
        return true;
      case Op::set:
        ok = position < text_.size() && regex_.sets_[instruction.a].contains(text_[position]);
        ++position;
        ++pc;
        break;
      case Op::run: {
        const CodepointSet& set = regex_.sets_[instruction.a];
        const bool unbounded = instruction.max == Regex::kUnbounded;
        const size_t limit =
            unbounded ? text_.size() : std::min<size_t>(text_.size(), position + instruction.max);
        const Exhausted& known = exhausted_[instruction.slot];
        size_t stop = position;
        size_t last = 0;  // the longest end worth trying
        bool reached = false;
        while (stop < limit && set.contains(text_[stop])) {
          if (unbounded && !instruction.possessive && known.begin <= stop && stop <= known.end) {
            reached = true;
            break;
          }
          ++stop;
        }
        spend((stop - position) / 8);
        // A start at the very end of the known stretch fails as well, although no character of it is left.
        if (unbounded && !instruction.possessive && known.begin <= stop && stop <= known.end) reached = true;
        const size_t low = position + instruction.min;
        if (reached) {
          ok = stop > low;
          last = stop - 1;
          stop = known.end;
        } else {
          ok = stop >= low;
          last = stop;
        }
        if (!ok) break;
        if (!instruction.possessive && regex_.program_[pc + 1].op != Op::match) {
          if (unbounded) {
            stack_.push_back({pc + 1, pc, last, low, stop});
          } else {
            for (size_t shorter = low; shorter < last; ++shorter) {
              stack_.push_back({pc + 1, kNoRun, shorter, 0, 0});
            }
          }
        }
        position = last;
        ++pc;
        break;
      }
      case Op::split:
        stack_.push_back({instruction.b, kNoRun, position, 0, 0});
        pc = instruction.a;
        break;
      case Op::jump:
        pc = instruction.a;
        break;
      case Op::look: {
        size_t ignored = 0;
        ok = run(pc + 1, position, ignored) !=
             instruction.negated;  // depth is bounded by the parser's nesting limit
        pc = instruction.a;
        break;
      }
      case Op::end:
        ok = position == text_.size() || text_[position] == U'\n';
        ++pc;
        break;
    }
    if (!ok && !backtrack(base, pc, position)) return false;
  }
}

}  // namespace tandem
