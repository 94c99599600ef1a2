// Answers in gpt-oss' harmony notation: messages with a channel each, between control tokens that no text can
// spell. The prompt ends behind the first message's <|start|>assistant.
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "grammar/call_rules.h"
#include "grammar/grammar_spec.h"

namespace tandem {
namespace {

using Json = nlohmann::ordered_json;
using E = GrammarExpression;

class HarmonyGrammar {
 public:
  Result<GrammarRules> make(const Json& form) {
    const bool required = form.value("required", false), has_answer = form.contains("answer") && !required;
    text_ = parts_.rules.add("text", free_text());
    std::vector<E> last;  // what the answer may end with
    if (!form.at("tools").empty()) {
      TANDEM_ASSIGN(E call, call_of_tools(form.at("tools"), parts_.rules, [&](const Json& tool) -> Result<E> {
                      TANDEM_ASSIGN(E arguments, parts_.arguments(tool));
                      return one_call(tool.at("name").get<std::string>(), std::move(arguments));
                    }));
      // Behind <|call|> a model waits for the result, unless it says more.
      const E end = E::choice({E::control_token("<|call|>"), E::control_token("<|end|>")});
      const uint32_t more = form.value("parallel", true) ? E::kUnbounded : 0;
      last.push_back(E::sequence({call, E::repeat(E::sequence({end, next_message(), call}), 0, more),
                                  E::optional(E::control_token("<|call|>"))}));
    }
    if (has_answer) {
      TANDEM_ASSIGN(E answer, parts_.answer(form));
      const auto kind = static_cast<GrammarKind>(form["answer"].value("kind", 0));
      const bool is_json = kind == GrammarKind::json_object || kind == GrammarKind::json_schema;
      last.push_back(message("final", is_json ? content_type() : E::sequence({}), std::move(answer)));
    } else if (!required) {
      last.push_back(message("final", E::sequence({}), E::call(text_)));
    }
    std::vector<E> before;
    if (form.value("reasoning", true)) before.push_back(whole_message("analysis"));
    // What is to have a form, or to be calls alone, has reasoning before it and no other text.
    const bool text_before = !required && !has_answer;
    if (text_before) before.push_back(whole_message("commentary"));
    E lead = before.empty() ? E::sequence({})
                            : E::repeat(E::choice(std::move(before)), 0, text_before ? E::kUnbounded : 1);
    parts_.rules.rules[0].expression = E::sequence({std::move(lead), E::choice(std::move(last))});
    return std::move(parts_.rules);
  }

 private:
  // Any text without the beginning of a mark's letters: answers are read as text, where such letters would
  // end the message. Behind "<" and "<|" another "<" begins anew.
  static E free_text() {
    const auto any_but = [](std::string_view characters) {
      CodepointSet set;
      for (const char c : characters) set.add(static_cast<unsigned char>(c));
      set.negate();
      return E::one_of(std::move(set));
    };
    const E open =
        E::sequence({E::literal("<"), E::repeat(E::choice({E::literal("<"), E::literal("|<")}), 0)});
    // start, channel, constrain, message, end, call, return
    E no_mark = E::choice({any_but("<|"), E::sequence({E::literal("|"), any_but("<scmer")})});
    return E::sequence({E::repeat(E::choice({any_but("<"), E::sequence({open, std::move(no_mark)})}), 0),
                        E::optional(E::sequence({open, E::optional(E::literal("|"))}))});
  }
  static E next_message() { return E::sequence({E::control_token("<|start|>"), E::literal("assistant")}); }
  // The template writes the type of past calls as plain text, the model with its mark.
  static E content_type() {
    return E::optional(E::choice(
        {E::sequence({E::optional(E::literal(" ")), E::control_token("<|constrain|>"), E::literal("json")}),
         E::literal(" json")}));
  }
  static E channel(const std::string& name) {
    return E::sequence({E::control_token("<|channel|>"), E::literal(name)});
  }
  static E message(const std::string& name, E type, E body) {
    return E::sequence({channel(name), std::move(type), E::control_token("<|message|>"), std::move(body)});
  }
  E whole_message(const std::string& name) const {
    return E::sequence(
        {message(name, E::sequence({}), E::call(text_)), E::control_token("<|end|>"), next_message()});
  }
  // The recipient stands behind the channel, as models write it, or behind the role, as templates do.
  static E one_call(const std::string& name, E arguments) {
    const E to = E::literal(" to=functions." + name);
    return E::sequence(
        {E::choice({E::sequence({channel("commentary"), to}), E::sequence({to, channel("commentary")})}),
         content_type(), E::control_token("<|message|>"), std::move(arguments)});
  }

  CallRules parts_;
  uint32_t text_ = 0;
};

}  // namespace

Result<GrammarRules> harmony_grammar(const Json& form) {
  return HarmonyGrammar().make(form);
}

}  // namespace tandem
