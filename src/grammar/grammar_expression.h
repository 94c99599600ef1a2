// GrammarExpression: what a grammar's rule may be, as a tree; the common form of regular expressions, GBNF
// and JSON schemas before they become a network of states. A value; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tokenizer/codepoint_set.h"

namespace tandem {

// A byte that no text in UTF-8 has. In the tree of a vocabulary control tokens stand behind it: a grammar can
// name them, and no text can spell one.
inline constexpr char kControlTokenByte = '\xff';

struct GrammarExpression {
  static constexpr uint32_t kUnbounded = UINT32_MAX;

  enum class Kind : uint8_t {
    bytes,     // exactly `bytes`
    set,       // one character of `set`, in UTF-8
    sequence,  // all children in order; none: the empty text
    choice,    // one of the children; none: nothing at all matches
    repeat,    // the one child, min to max times
    rule,      // whatever rule number `rule` matches
  };

  Kind kind = Kind::sequence;
  uint32_t min = 1, max = 1;
  uint32_t rule = 0;
  std::string bytes = {};
  CodepointSet set = {};
  std::vector<GrammarExpression> children = {};

  static GrammarExpression literal(std::string_view text) {
    return {.kind = Kind::bytes, .bytes = std::string(text)};
  }
  // The one token, not its letters. A vocabulary without it has nothing that matches.
  static GrammarExpression control_token(std::string_view token) {
    return literal(kControlTokenByte + std::string(token));
  }
  static GrammarExpression one_of(CodepointSet characters) {
    return {.kind = Kind::set, .set = std::move(characters)};
  }
  static GrammarExpression range(char32_t first, char32_t last) {
    GrammarExpression out{.kind = Kind::set};
    out.set.add(first, last);
    return out;
  }
  static GrammarExpression sequence(std::vector<GrammarExpression> parts) {
    return {.kind = Kind::sequence, .children = std::move(parts)};
  }
  static GrammarExpression choice(std::vector<GrammarExpression> options) {
    return {.kind = Kind::choice, .children = std::move(options)};
  }
  static GrammarExpression repeat(GrammarExpression what, uint32_t min, uint32_t max = kUnbounded) {
    GrammarExpression out{.kind = Kind::repeat, .min = min, .max = max};
    out.children.push_back(std::move(what));
    return out;
  }
  static GrammarExpression optional(GrammarExpression what) { return repeat(std::move(what), 0, 1); }
  static GrammarExpression call(uint32_t number) { return {.kind = Kind::rule, .rule = number}; }
};

// A grammar: the text must match rule 0. Rules may call each other and themselves, but not before they have
// consumed something (left recursion).
struct GrammarRules {
  struct Rule {
    std::string name;  // for messages
    GrammarExpression expression;
  };
  std::vector<Rule> rules;

  uint32_t add(std::string name, GrammarExpression expression = {}) {
    rules.push_back({std::move(name), std::move(expression)});
    return static_cast<uint32_t>(rules.size() - 1);
  }
};

}  // namespace tandem
