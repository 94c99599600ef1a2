// GrammarNetwork: the rules of a grammar as states over bytes, with calls between rules (a recursive
// transition network, Woods 1970). States that only lead on are gone: every edge consumes a byte or calls a
// rule. Immutable once built; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "grammar/grammar_expression.h"

namespace tandem {

class GrammarNetwork {
 public:
  struct ByteEdge {
    uint8_t first, last;  // inclusive
    uint32_t to;
  };
  struct CallEdge {
    uint32_t start;  // of the rule
    uint32_t to;     // where to go on when it has ended
  };

  // More would take seconds and hundreds of megabytes; a schema of a few hundred fields has some ten
  // thousand.
  static constexpr size_t kMaxStates = 1 << 18;
  // Edges once the empty steps are gone. Nested optional repetitions have the square of their states, which
  // is seconds of work for a pattern of a line; a large schema has some hundred thousand.
  static constexpr size_t kMaxEdges = 1 << 22;

  // Errors: `invalid_argument` naming a rule that is left-recursive; `out_of_range` for a grammar of more
  // than kMaxStates states or kMaxEdges edges.
  static Result<GrammarNetwork> build(const GrammarRules& rules);

  uint32_t start() const { return 0; }
  size_t num_states() const { return states_.size(); }
  std::span<const ByteEdge> byte_edges(uint32_t state) const {
    const State& s = states_[state];
    return std::span(byte_edges_).subspan(s.bytes_begin, states_[state + 1].bytes_begin - s.bytes_begin);
  }
  std::span<const CallEdge> call_edges(uint32_t state) const {
    const State& s = states_[state];
    return std::span(call_edges_).subspan(s.calls_begin, states_[state + 1].calls_begin - s.calls_begin);
  }
  // The rule may end here.
  bool accepts(uint32_t state) const { return states_[state].accepts; }
  // The rule must end here.
  bool only_accepts(uint32_t state) const {
    return accepts(state) && byte_edges(state).empty() && call_edges(state).empty();
  }

 private:
  friend class NetworkBuilder;
  struct State {
    uint32_t bytes_begin = 0, calls_begin = 0;
    bool accepts = false;
  };
  std::vector<State> states_;  // one more at the end, for the ends of the last one's edges
  std::vector<ByteEdge> byte_edges_;
  std::vector<CallEdge> call_edges_;
};

}  // namespace tandem
