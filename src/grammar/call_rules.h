// CallRules: what grammars of calls are made of, whatever notation a model writes them in: the rules so far,
// those of schemas and of other forms beside them, and the arguments of a tool. Internal to grammars of
// calls; one thread.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "base/result.h"
#include "grammar/grammar_expression.h"
#include "grammar/json_text.h"

namespace tandem {

struct CallRules {
  using Json = nlohmann::ordered_json;

  GrammarRules rules;
  JsonText json;

  // Rule 0 is the root, still empty.
  CallRules() : json(rules) { rules.add("root"); }
  CallRules(const CallRules&) = delete;
  CallRules& operator=(const CallRules&) = delete;

  // The rules beside those that are here; a call of their first.
  GrammarExpression add(GrammarRules parts);
  // Errors: those of json_schema_grammar.
  Result<GrammarExpression> schema(const Json& document);
  // The JSON text of a call's arguments: by the schema of a strict tool, any object of another.
  Result<GrammarExpression> arguments(const Json& tool);
  // Of a form whose `answer` is there: what it says. invalid_argument: calls again.
  Result<GrammarExpression> answer(const Json& form);

  static bool is_strict(const Json& tool) { return tool.value("strict", false); }
  static Json parameters_of(const Json& tool);
};

// A form in harmony notation (harmony_grammar.cc), made of messages.
Result<GrammarRules> harmony_grammar(const nlohmann::ordered_json& form);

// The calls of all tools, one of which it is: `make_call` has one's, with errors that do not name it yet.
template <class MakeCall>
Result<GrammarExpression> call_of_tools(const nlohmann::ordered_json& tools, GrammarRules& rules,
                                        MakeCall&& make_call) {
  std::vector<GrammarExpression> calls;
  for (const auto& tool : tools) {
    Result<GrammarExpression> call = make_call(tool);
    if (!call) {
      return make_error(call.error().code, "the function " + tool.at("name").template get<std::string>() +
                                               ": " + call.error().message);
    }
    calls.push_back(GrammarExpression::call(rules.add("call", std::move(*call))));
  }
  return GrammarExpression::call(rules.add("calls", GrammarExpression::choice(std::move(calls))));
}

}  // namespace tandem
