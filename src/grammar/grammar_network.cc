#include "grammar/grammar_network.h"

#include <fmt/format.h>
#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <unordered_map>

#include "grammar/utf8_ranges.h"

namespace tandem {

// Builds each expression backwards, from the state that follows it to the state that begins it (Thompson's
// construction with the ends joined), and drops the empty steps afterwards.
class NetworkBuilder {
 public:
  explicit NetworkBuilder(const GrammarRules& rules) : rules_(rules) {}

  Result<GrammarNetwork> build() {
    for (size_t i = 0; i < rules_.rules.size(); ++i) rule_starts_.push_back(add_state());
    const uint32_t end = add_state();
    draft_[end].accepts = true;
    for (size_t i = 0; i < rules_.rules.size(); ++i) {
      TANDEM_ASSIGN(const uint32_t entry, add(rules_.rules[i].expression, end));
      draft_[rule_starts_[i]].empty.push_back(entry);
    }
    TANDEM_TRY(drop_empty_steps());
    TANDEM_TRY(refuse_left_recursion());
    drop_dead_ends();
    return finish();
  }

 private:
  struct Draft {
    std::vector<uint32_t> empty = {};  // states reached without a byte
    std::vector<GrammarNetwork::ByteEdge> bytes = {};
    std::vector<GrammarNetwork::CallEdge> calls = {};
    bool accepts = false;
  };

  static std::unexpected<Error> too_large(size_t limit, std::string_view what) {
    return make_error(
        ErrorCode::out_of_range,
        fmt::format("the grammar needs more than {} {}; use smaller repetitions, or fewer rules", limit,
                    what));
  }
  uint32_t add_state() {
    draft_.emplace_back();
    return static_cast<uint32_t>(draft_.size() - 1);
  }
  // A state whose one edge is this; the same for equal edges, so that characters share their last bytes.
  uint32_t byte_state(uint8_t first, uint8_t last, uint32_t to) {
    const auto [at, is_new] = byte_states_.try_emplace({first, last, to}, 0);
    if (is_new) {
      at->second = add_state();
      draft_[at->second].bytes.push_back({first, last, to});
    }
    return at->second;
  }

  Result<uint32_t> add(const GrammarExpression& expression, uint32_t next) {
    if (draft_.size() > GrammarNetwork::kMaxStates) {
      return too_large(GrammarNetwork::kMaxStates, "states");
    }
    using Kind = GrammarExpression::Kind;
    switch (expression.kind) {
      case Kind::bytes:
        for (size_t i = expression.bytes.size(); i-- > 0;) {
          const auto byte = static_cast<uint8_t>(expression.bytes[i]);
          next = byte_state(byte, byte, next);
        }
        return next;
      case Kind::set:
        return add_set(expression.set, next);
      case Kind::sequence:
        for (size_t i = expression.children.size(); i-- > 0;) {
          TANDEM_ASSIGN(next, add(expression.children[i], next));
        }
        return next;
      case Kind::choice: {
        const uint32_t state = add_state();
        for (const GrammarExpression& option : expression.children) {
          TANDEM_ASSIGN(const uint32_t entry, add(option, next));
          draft_[state].empty.push_back(entry);
        }
        return state;
      }
      case Kind::repeat:
        return add_repeat(expression, next);
      case Kind::rule: {
        const uint32_t state = add_state();
        draft_[state].calls.push_back({rule_starts_[expression.rule], next});
        return state;
      }
    }
    return next;
  }

  uint32_t add_set(const CodepointSet& set, uint32_t next) {
    const uint32_t state = add_state();
    for (const CodepointSet::Range& range : set.ranges()) {
      visit_utf8_ranges(range.first, range.last, [&](const Utf8Range& bytes) {
        uint32_t to = next;
        for (uint32_t i = bytes.count - 1; i > 0; --i) to = byte_state(bytes.first[i], bytes.last[i], to);
        draft_[state].bytes.push_back({bytes.first[0], bytes.last[0], to});
      });
    }
    return state;
  }

  Result<uint32_t> add_repeat(const GrammarExpression& expression, uint32_t next) {
    const GrammarExpression& what = expression.children[0];
    if (expression.max == GrammarExpression::kUnbounded) {
      const uint32_t loop = add_state();
      TANDEM_ASSIGN(const uint32_t entry, add(what, loop));
      draft_[loop].empty = {entry, next};
      next = loop;
    } else {
      // One inside the other: each state has two ways on, however many repetitions there may be.
      const uint32_t end = next;
      for (uint32_t i = expression.min; i < expression.max; ++i) {
        TANDEM_ASSIGN(const uint32_t entry, add(what, next));
        next = add_state();
        draft_[next].empty = {entry, end};
      }
    }
    for (uint32_t i = 0; i < expression.min; ++i) {
      TANDEM_ASSIGN(next, add(what, next));
    }
    return next;
  }

  // Gives every state the edges of all that it reaches without a byte.
  Status drop_empty_steps() {
    size_t steps = 0;
    std::vector<Draft> closed(draft_.size());
    std::vector<uint32_t> seen(draft_.size(), 0), work;
    for (uint32_t state = 0; state < draft_.size(); ++state) {
      Draft& out = closed[state];
      work.assign(1, state);
      while (!work.empty()) {
        const uint32_t at = work.back();
        work.pop_back();
        if (seen[at] == state + 1) continue;
        seen[at] = state + 1;
        const Draft& from = draft_[at];
        steps += 1 + from.bytes.size() + from.calls.size() + from.empty.size();
        if (steps > GrammarNetwork::kMaxEdges) return too_large(GrammarNetwork::kMaxEdges, "edges");
        out.bytes.insert(out.bytes.end(), from.bytes.begin(), from.bytes.end());
        out.calls.insert(out.calls.end(), from.calls.begin(), from.calls.end());
        out.accepts |= from.accepts;
        work.insert(work.end(), from.empty.begin(), from.empty.end());
      }
    }
    draft_ = std::move(closed);
    return {};
  }

  // Drops the edges behind which no text comes to an end: a set without a character that has UTF-8, a rule
  // that always calls itself. Tokens that lead there would never be taken back.
  void drop_dead_ends() {
    std::vector<bool> live(draft_.size());
    std::vector<std::vector<uint32_t>> waiting(draft_.size());
    std::vector<uint32_t> work;
    const auto mark = [&](uint32_t state) {
      if (live[state]) return;
      live[state] = true;
      work.push_back(state);
    };
    for (uint32_t state = 0; state < draft_.size(); ++state) {
      if (draft_[state].accepts) mark(state);
      for (const GrammarNetwork::ByteEdge& edge : draft_[state].bytes) waiting[edge.to].push_back(state);
      for (const GrammarNetwork::CallEdge& call : draft_[state].calls) {
        waiting[call.start].push_back(state);
        waiting[call.to].push_back(state);
      }
    }
    const auto is_dead_edge = [&](const GrammarNetwork::ByteEdge& edge) { return !live[edge.to]; };
    const auto is_dead_call = [&](const GrammarNetwork::CallEdge& call) {
      return !live[call.start] || !live[call.to];
    };
    while (!work.empty()) {
      const uint32_t at = work.back();
      work.pop_back();
      for (const uint32_t state : waiting[at]) {
        if (live[state]) continue;
        const Draft& draft = draft_[state];
        if (!std::ranges::all_of(draft.bytes, is_dead_edge) ||
            !std::ranges::all_of(draft.calls, is_dead_call))
          mark(state);
      }
    }
    for (Draft& draft : draft_) {
      std::erase_if(draft.bytes, is_dead_edge);
      std::erase_if(draft.calls, is_dead_call);
    }
  }

  // Whether the rule at a state can end without a byte, for every state.
  std::vector<bool> can_be_empty() const {
    std::vector<bool> empty(draft_.size());
    // Who may become empty when a state does: those with a call to it, or one that goes on there.
    std::vector<std::vector<uint32_t>> waiting(draft_.size());
    std::vector<uint32_t> work;
    const auto mark = [&](uint32_t state) {
      if (empty[state]) return;
      empty[state] = true;
      work.push_back(state);
    };
    for (uint32_t state = 0; state < draft_.size(); ++state) {
      if (draft_[state].accepts) mark(state);
      for (const GrammarNetwork::CallEdge& call : draft_[state].calls) {
        waiting[call.start].push_back(state);
        waiting[call.to].push_back(state);
      }
    }
    while (!work.empty()) {
      const uint32_t at = work.back();
      work.pop_back();
      for (const uint32_t state : waiting[at]) {
        const auto is_empty = [&](const GrammarNetwork::CallEdge& call) {
          return empty[call.start] && empty[call.to];
        };
        if (std::ranges::any_of(draft_[state].calls, is_empty)) mark(state);
      }
    }
    return empty;
  }

  // A rule that calls itself before it has consumed a byte would call for ever.
  Status refuse_left_recursion() const {
    const std::vector<bool> empty = can_be_empty();
    const auto count = static_cast<uint32_t>(rule_starts_.size());
    std::vector<std::vector<uint32_t>> first_calls(count);
    std::vector<uint32_t> seen(draft_.size(), UINT32_MAX), work;
    for (uint32_t rule = 0; rule < count; ++rule) {
      work.assign(1, rule_starts_[rule]);
      while (!work.empty()) {
        const uint32_t at = work.back();
        work.pop_back();
        if (seen[at] == rule) continue;
        seen[at] = rule;
        for (const GrammarNetwork::CallEdge& call : draft_[at].calls) {
          first_calls[rule].push_back(call.start);  // a rule's start has the rule's number
          if (empty[call.start]) work.push_back(call.to);
        }
      }
    }
    enum : uint8_t { unseen, open, done };
    std::vector<uint8_t> mark(count, unseen);
    for (uint32_t root = 0; root < count; ++root) {
      std::vector<std::pair<uint32_t, size_t>> path;
      if (mark[root] == unseen) path.emplace_back(root, 0);
      while (!path.empty()) {
        auto& [rule, next] = path.back();
        mark[rule] = open;
        if (next == first_calls[rule].size()) {
          mark[rule] = done;
          path.pop_back();
          continue;
        }
        const uint32_t called = first_calls[rule][next++];
        if (mark[called] == open) {
          return make_error(
              ErrorCode::invalid_argument,
              fmt::format("rule \"{}\" calls itself before it has consumed a character (left recursion); "
                          "write it as a repetition",
                          rules_.rules[called].name));
        }
        if (mark[called] == unseen) path.emplace_back(called, 0);
      }
    }
    return {};
  }

  // Numbers the states that are left, rule 0's start first.
  GrammarNetwork finish() const {
    std::vector<uint32_t> order, number(draft_.size(), UINT32_MAX);
    const auto visit = [&](uint32_t state) {
      if (number[state] != UINT32_MAX) return;
      number[state] = static_cast<uint32_t>(order.size());
      order.push_back(state);
    };
    visit(rule_starts_[0]);
    for (size_t i = 0; i < order.size(); ++i) {
      for (const auto& edge : draft_[order[i]].bytes) visit(edge.to);
      for (const auto& call : draft_[order[i]].calls) {
        visit(call.start);
        visit(call.to);
      }
    }
    GrammarNetwork out;
    const auto add_edges = [&] {
      out.states_.push_back({static_cast<uint32_t>(out.byte_edges_.size()),
                             static_cast<uint32_t>(out.call_edges_.size()), false});
    };
    for (const uint32_t state : order) {
      add_edges();
      out.states_.back().accepts = draft_[state].accepts;
      for (const auto& edge : draft_[state].bytes)
        out.byte_edges_.push_back({edge.first, edge.last, number[edge.to]});
      for (const auto& call : draft_[state].calls)
        out.call_edges_.push_back({number[call.start], number[call.to]});
    }
    add_edges();
    return out;
  }

  const GrammarRules& rules_;
  std::vector<uint32_t> rule_starts_;  // state i begins rule i
  std::vector<Draft> draft_;
  std::map<std::tuple<uint8_t, uint8_t, uint32_t>, uint32_t> byte_states_;
};

Result<GrammarNetwork> GrammarNetwork::build(const GrammarRules& rules) {
  return NetworkBuilder(rules).build();
}

}  // namespace tandem
