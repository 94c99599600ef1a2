// GrammarSpec: what a request says about the form of its answer, as it travels to the worker that samples.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"

namespace tandem {

struct GrammarRules;

enum class GrammarKind : uint8_t {
  none,
  json_object,  // any JSON object; no text
  json_schema,  // text: a JSON schema (json_schema.h)
  regex,        // text: a regular expression that the whole answer matches (regex_grammar.h)
  gbnf,         // text: a grammar (gbnf.h)
  choice,       // text: a JSON list of strings, one of which is the answer
  tool_calls,   // text: a form of calls (tool_call_grammar.h)
};
inline constexpr uint8_t kGrammarKinds = 7;

struct GrammarSpec {
  GrammarKind kind = GrammarKind::none;
  std::string text = {};
  // Reasoning is free: from `reasoning_begin`, as the answer's first token, up to and with `reasoning_end`.
  // -1: the model has none.
  int32_t reasoning_begin = -1, reasoning_end = -1;
  bool in_reasoning = false;  // the prompt ended inside it
  // Tokens of reasoning after which only reasoning_end may follow, whether there is a form or not.
  uint32_t reasoning_budget = UINT32_MAX;

  bool empty() const { return kind == GrammarKind::none; }
  bool has_budget() const { return reasoning_budget != UINT32_MAX && reasoning_end >= 0; }
  bool operator==(const GrammarSpec&) const = default;
};

// The rules that the text means. `spec` is not empty. Errors: those of its kind.
Result<GrammarRules> grammar_rules(const GrammarSpec& spec);

}  // namespace tandem
