#include "grammar/grammar_spec.h"

#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "grammar/gbnf.h"
#include "grammar/grammar_expression.h"
#include "grammar/json_schema.h"
#include "grammar/regex_grammar.h"
#include "grammar/tool_call_grammar.h"
#include "tokenizer/unicode.h"

namespace tandem {
namespace {

Result<GrammarExpression> one_of_strings(const std::string& text) {
  const auto list = nlohmann::json::parse(text, nullptr, false);
  if (!list.is_array() || list.empty()) {
    return make_error(ErrorCode::invalid_argument, "choice must be a list of at least one string");
  }
  std::vector<GrammarExpression> options;
  for (const auto& option : list) {
    if (!option.is_string() || option.get_ref<const std::string&>().empty()) {
      return make_error(ErrorCode::invalid_argument,
                        "choice holds " + option.dump() + "; it must hold strings that are not empty");
    }
    options.push_back(GrammarExpression::literal(option.get_ref<const std::string&>()));
  }
  return GrammarExpression::choice(std::move(options));
}

}  // namespace

Result<GrammarRules> grammar_rules(const GrammarSpec& spec) {
  GrammarRules rules;
  switch (spec.kind) {
    case GrammarKind::none:
      break;
    case GrammarKind::json_object:
      return json_object_grammar();
    case GrammarKind::json_schema:
      return json_schema_grammar(spec.text);
    case GrammarKind::gbnf:
      return parse_gbnf(spec.text);
    case GrammarKind::tool_calls:
      return tool_call_grammar(spec.text);
    case GrammarKind::regex: {
      TANDEM_ASSIGN(GrammarExpression root,
                    regex_grammar(spec.text, RegexMatch::whole, GrammarExpression::range(0, kMaxCodepoint)));
      rules.add("root", std::move(root));
      return rules;
    }
    case GrammarKind::choice: {
      TANDEM_ASSIGN(GrammarExpression root, one_of_strings(spec.text));
      rules.add("root", std::move(root));
      return rules;
    }
  }
  return make_error(ErrorCode::internal, "a grammar of no kind");
}

}  // namespace tandem
