// JsonText: JSON's own pieces (RFC 8259) as rules of a grammar: what schemas are made of. Whitespace and
// digits are bounded, so that a model cannot go on with either for ever.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "grammar/grammar_expression.h"

namespace tandem {

class JsonText {
 public:
  // The rules are added to `rules` as they are asked for; `rules` outlives this.
  explicit JsonText(GrammarRules& rules) : rules_(rules) {}

  // Nothing, one space, or a new line with its indentation.
  GrammarExpression space();
  // One character inside a string, as it is or escaped; U+0000..U+001F only escaped.
  GrammarExpression character();
  GrammarExpression string();  // with its quotes
  GrammarExpression number();
  GrammarExpression integer();
  GrammarExpression boolean();
  GrammarExpression null() { return GrammarExpression::literal("null"); }
  GrammarExpression value();  // anything
  GrammarExpression array();
  GrammarExpression object();

  // A string that is none of `texts`, with its quotes: the name of a property that is not declared. No \u
  // escapes before it differs from all of them.
  GrammarExpression string_except(std::vector<std::string> texts);

  // "name": value
  GrammarExpression member(GrammarExpression name, GrammarExpression value);
  // The elements between brackets: open, elements separated by commas, close.
  GrammarExpression list(std::string_view open, GrammarExpression element, uint32_t min, uint32_t max,
                         std::string_view close);

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  // The rule in `slot`, made by `make` at first use. Its number is known before it is made: rules may recur.
  template <class Make>
  GrammarExpression shared(uint32_t& slot, std::string_view name, const Make& make) {
    if (slot == kNone) {
      slot = rules_.add(std::string(name));
      GrammarExpression made = make();
      rules_.rules[slot].expression = std::move(made);
    }
    return GrammarExpression::call(slot);
  }

  GrammarRules& rules_;
  uint32_t space_ = kNone, character_ = kNone, string_ = kNone, number_ = kNone, integer_ = kNone,
           value_ = kNone, array_ = kNone, object_ = kNone;
};

// The same texts written inside a JSON string: quotes, backslashes and control characters become escapes.
GrammarExpression escaped_for_json(const GrammarExpression& expression);

}  // namespace tandem
