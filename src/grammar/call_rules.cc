#include "grammar/call_rules.h"

#include "grammar/grammar_spec.h"
#include "grammar/json_schema.h"

namespace tandem {
namespace {

using E = GrammarExpression;

void shift_calls(E& expression, uint32_t by) {
  if (expression.kind == E::Kind::rule) expression.rule += by;
  for (E& child : expression.children) shift_calls(child, by);
}

}  // namespace

GrammarExpression CallRules::add(GrammarRules parts) {
  const auto first = static_cast<uint32_t>(rules.rules.size());
  for (GrammarRules::Rule& rule : parts.rules) {
    shift_calls(rule.expression, first);
    rules.rules.push_back(std::move(rule));
  }
  return E::call(first);
}

Result<GrammarExpression> CallRules::schema(const Json& document) {
  TANDEM_ASSIGN(GrammarRules parts, json_schema_grammar(document.dump()));
  return add(std::move(parts));
}

Result<GrammarExpression> CallRules::arguments(const Json& tool) {
  if (!is_strict(tool)) return json.object();
  return schema(parameters_of(tool));
}

Result<GrammarExpression> CallRules::answer(const Json& form) {
  GrammarSpec spec;
  spec.kind = static_cast<GrammarKind>(form.at("answer").value("kind", 0));
  spec.text = form.at("answer").value("text", "");
  if (spec.kind == GrammarKind::tool_calls)
    return make_error(ErrorCode::invalid_argument, "the answer beside tool calls cannot be calls again");
  TANDEM_ASSIGN(GrammarRules parts, grammar_rules(spec));
  return add(std::move(parts));
}

nlohmann::ordered_json CallRules::parameters_of(const Json& tool) {
  const Json none = {{"type", "object"}, {"properties", Json::object()}, {"additionalProperties", false}};
  const auto found = tool.find("parameters");
  return found == tool.end() || !found->is_object() || found->empty() ? none : *found;
}

}  // namespace tandem
