// Calls of tools as a grammar: an answer that calls, or may call, the tools of a request in the notation that
// its model writes them in. Pure; any thread.
//
// A form is a JSON object:
//   format    "hermes": <tool_call> with {"name", "arguments"}; "dsml": DeepSeek-V4's blocks
//   required  true: the answer is calls alone; false: text, then calls or none
//   answer    {"kind", "text"} of a GrammarSpec: without a call the answer has this form, instead of any text
//   parallel  whether there may be several calls
//   tools     a list of {"name", "parameters", "strict"}: strict arguments match the JSON schema; others are
//   any
//             object (hermes), or any values of the properties that the schema declares (dsml)
#pragma once

#include <string_view>

#include "base/result.h"
#include "grammar/grammar_expression.h"

namespace tandem {

// Errors: those of json_schema_grammar, with the tool's name before them; `unsupported` for a property whose
// name the notation cannot write.
Result<GrammarRules> tool_call_grammar(std::string_view form);

// A control token that calls are written with: grammars may produce it, unlike others.
bool is_call_marker(std::string_view token);

}  // namespace tandem
