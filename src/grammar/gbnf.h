// GBNF: the grammar notation of llama.cpp, which vLLM's `grammar` takes as well.
//
//   root  ::= "yes" | "no" because?      rules end with the line, unless a ( is open or the next line goes on
//   with | because ::= " because " [a-z ]{1,40} # sequences, classes, "text", ., ( ), * + ? {n} {n,} {n,m},
//   comments
//
// Escapes in text and classes: \n \r \t \\ \" \[ \] \- \^ \xHH \uHHHH \UHHHHHHHH. The text must match the
// rule "root". Pure; any thread.
#pragma once

#include <string_view>

#include "base/result.h"
#include "grammar/grammar_expression.h"

namespace tandem {

// Errors: `invalid_argument` naming line and column, or a rule that is used and not there.
Result<GrammarRules> parse_gbnf(std::string_view text);

}  // namespace tandem
