// A regular expression as a grammar. Pure; any thread.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/result.h"
#include "grammar/grammar_expression.h"

namespace tandem {

enum class RegexMatch : uint8_t {
  whole,   // the pattern describes the whole text; ^ and $ at its ends say nothing
  inside,  // it must match somewhere, as `pattern` of a JSON schema: text may stand around it, but not beyond
           // ^ or $
};

// `around`: what may stand beside a match of `inside`, one character. Errors: `unsupported` naming the
// construct (lookaround, \b, back references, anchors inside a group) and its place; `invalid_argument` for
// bad syntax.
Result<GrammarExpression> regex_grammar(std::string_view pattern, RegexMatch match,
                                        const GrammarExpression& around);

}  // namespace tandem
