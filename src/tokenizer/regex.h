// The regular expressions of pre-tokenizer patterns, with the meaning that the reference's engine (Oniguruma,
// Ruby syntax) gives them: leftmost match, alternatives in order, greedy repetition; `\s` is Unicode
// White_Space, `$` is the end of the text or the place before a newline, (?i:s) also matches U+017F.
//
// Read: literals, escapes, classes (nested, negated, `&&`), \p{..}, groups, (?i:..), lookahead, greedy and
// possessive repetition. Everything else (captures that are used, lookbehind, lazy repetition, \b, ...) is
// refused by name, and so is a pattern that can match the empty string.
//
// A compiled Regex is immutable and may be shared by threads; a RegexSearch belongs to one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "tokenizer/codepoint_set.h"

namespace tandem {

struct RegexInstruction {
  enum class Op : uint8_t {
    set,    // one character of sets[a]
    run,    // between min and max characters of sets[a], as many as possible; gives back one by one
    split,  // try a, then b
    jump,   // go on at a
    look,   // the program at pc + 1 must match here (negated: must not); go on at a
    end,    // end of text or before a newline
    match,
  };
  Op op;
  bool negated = false;
  bool possessive = false;  // run: gives nothing back
  uint32_t a = 0, b = 0;
  uint32_t min = 0, max = 0;  // run; max == kUnbounded
  uint32_t slot = 0;          // run: index of its memory in RegexSearch
};

class Regex {
 public:
  static constexpr uint32_t kUnbounded = UINT32_MAX;

  // `pattern` is UTF-8. Errors: `unsupported` naming the construct and its byte offset, `invalid_argument`
  // for bad syntax.
  static Result<Regex> compile(std::string_view pattern);
  // Matches exactly `text`, which must not be empty.
  static Result<Regex> literal(std::string_view text);

 private:
  friend class RegexSearch;
  friend class RegexCompiler;

  std::string pattern_;
  std::vector<RegexInstruction> program_;
  std::vector<CodepointSet> sets_;
  CodepointSet first_;  // characters that can begin a match
  uint32_t num_runs_ = 0;
};

// Searches one text. Holds the backtracking state, so that a search allocates nothing once warm.
class RegexSearch {
 public:
  explicit RegexSearch(const Regex& regex) : regex_(regex), exhausted_(regex.num_runs_) {}

  struct Match {
    size_t begin = 0, end = 0;
    bool found = false;
  };

  // Sets the text, `text` must stay alive during the searches.
  void reset(std::span<const char32_t> text);

  // The first match that begins at or after `from`. Error: `resource_exhausted` when pattern and text
  // together would take more than a linear number of steps; no pattern of a known model does.
  Result<Match> find(size_t from);

 private:
  // A repetition's continuation has failed at every position of [begin, end], where `end` is where the
  // repetition stopped: another start that reaches `begin` need not try those again. This is what keeps
  // `\s+$` linear.
  struct Exhausted {
    size_t begin = 1, end = 0;
  };
  struct Frame {
    uint32_t pc;      // where to go on
    uint32_t run;     // instruction of the repetition to shorten, or kNoRun
    size_t position;  // last position tried
    size_t low;       // shortest end allowed
    size_t stop;      // where the repetition stopped
  };
  static constexpr uint32_t kNoRun = UINT32_MAX;

  bool run(uint32_t pc, size_t position, size_t& end);
  bool backtrack(size_t base, uint32_t& pc, size_t& position);

  const Regex& regex_;
  std::span<const char32_t> text_;
  std::vector<Exhausted> exhausted_;
  std::vector<Frame> stack_;
  uint64_t steps_left_ = 0;
};

}  // namespace tandem
