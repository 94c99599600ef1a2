// Calls of tools as a grammar: an answer that calls, or may call, the tools of a request in the notation that
// its model writes them in. Pure; any thread.
//
// A form is a JSON object:
//   format    "hermes": <tool_call> with {"name", "arguments"}
//             "dsml": DeepSeek-V4's blocks
//             "glm": <tool_call> with <arg_key> and <arg_value>
//             "harmony": gpt-oss' messages, which text and reasoning are as well
//   required  true: the answer is calls alone; false: text, then calls or none
//   answer    {"kind", "text"} of a GrammarSpec: without a call the answer has this form, instead of any text
//   parallel  whether there may be several calls
//   reasoning of harmony: whether messages of reasoning may come before (default true)
//   tools     a list of {"name", "parameters", "strict"}; of harmony it may be empty beside an `answer`.
//             Strict arguments match the JSON schema; others are any object (hermes, harmony), or any values
//             of the properties that the schema declares (dsml, glm)
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string_view>

#include "base/result.h"
#include "grammar/grammar_expression.h"

namespace tandem {

// Errors: those of json_schema_grammar, with the tool's name before them; `unsupported` for a property whose
// name the notation cannot write.
Result<GrammarRules> tool_call_grammar(std::string_view form);

// Of a property of a strict tool: whether dsml and glm write its values as they are, and not as JSON. Plain
// strings, and choices among strings.
bool is_written_as_text(const nlohmann::ordered_json& property);

// A control token that calls are written with: grammars may produce it, unlike others.
bool is_call_marker(std::string_view token);

}  // namespace tandem
