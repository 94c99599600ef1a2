#include "grammar/tool_call_grammar.h"

#include <algorithm>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "grammar/call_rules.h"
#include "grammar/json_schema.h"
#include "tokenizer/unicode.h"

namespace tandem {
namespace {

using Json = nlohmann::ordered_json;
using E = GrammarExpression;

constexpr std::string_view kHermesOpen = "<tool_call>", kHermesClose = "</tool_call>";
constexpr std::string_view kDsmlOpen = "<｜DSML｜tool_calls>", kDsmlClose = "</｜DSML｜tool_calls>";
constexpr std::string_view kParameterClose = "</｜DSML｜parameter>";
constexpr std::string_view kValueClose = "</arg_value>";

// ASCII, and U+FF5C, which DeepSeek's marks have: all that marks are made of.
std::vector<char32_t> characters_of(std::string_view mark) {
  std::vector<char32_t> out;
  for (size_t i = 0; i < mark.size(); ++i) {
    const auto byte = static_cast<unsigned char>(mark[i]);
    out.push_back(byte < 0x80 ? byte : 0xff5c);
    if (byte >= 0x80) i += 2;
  }
  return out;
}

E any_but(std::initializer_list<char32_t> characters) {
  CodepointSet set;
  for (const char32_t c : characters) set.add(c);
  set.negate();
  return E::one_of(std::move(set));
}

E character(char32_t c) {
  return E::range(c, c);
}

// Any text that the mark does not occur in. The mark's first character, '<', must not come again in it: then
// what has matched some of it and fails goes on at its beginning, or at its second character with another
// '<'.
E text_without(std::string_view mark) {
  const std::vector<char32_t> m = characters_of(mark);
  const size_t n = m.size();
  // Behind "<" and k - 1 further characters of the mark: `fails`, a character with which it is none; `begun`,
  // whatever more of it, so that another '<' or the end follows.
  E fails = any_but({'<', m[n - 1]});
  E begun = E::sequence({});
  for (size_t k = n - 1; k-- > 1;) {
    fails = E::choice({any_but({'<', m[k]}), E::sequence({character(m[k]), std::move(fails)})});
    begun = E::optional(E::sequence({character(m[k]), std::move(begun)}));
  }
  const E begin = E::sequence({character('<'), std::move(begun)});
  E no_mark = E::sequence({E::repeat(begin, 0), character('<'), std::move(fails)});
  return E::sequence({E::repeat(E::choice({any_but({'<'}), std::move(no_mark)}), 0), E::repeat(begin, 0)});
}

// Beside its type.
bool asserts_nothing_else(const Json& property) {
  for (const auto& [keyword, value] : property.items()) {
    if (keyword != "type" && keyword != "description" && keyword != "title" && keyword != "default" &&
        keyword != "examples")
      return false;
  }
  return true;
}

bool is_plain_string(const Json& property) {
  return property.is_object() && property.value("type", Json()) == "string" && asserts_nothing_else(property);
}

// Of an enumeration of strings that can stand as they are; none otherwise.
std::vector<std::string> texts_of(const Json& property) {
  std::vector<std::string> out;
  if (!property.is_object() || !property.contains("enum") || !property["enum"].is_array()) return out;
  for (const Json& option : property["enum"]) {
    if (!option.is_string() || option.get_ref<const std::string&>().find('<') != std::string::npos) return {};
    out.push_back(option.get<std::string>());
  }
  return out;
}

class CallGrammar {
 public:
  Result<GrammarRules> make(const Json& form) {
    const std::string format = form.value("format", "");
    const bool dsml = format == "dsml", glm = format == "glm";
    TANDEM_ASSIGN(const E call, call_of_tools(form.at("tools"), parts_.rules, [&](const Json& tool) {
                    return dsml ? dsml_call(tool) : glm ? glm_call(tool) : hermes_call(tool);
                  }));
    const bool parallel = form.value("parallel", true);
    E block =
        dsml ? E::sequence({E::literal(kDsmlOpen), E::literal("\n"),
                            E::repeat(E::sequence({call, E::literal("\n")}), 1, parallel ? E::kUnbounded : 1),
                            E::literal(kDsmlClose)})
             : call;
    const E gap = glm ? line_break() : E::literal("\n");
    if (!dsml && parallel) block = E::sequence({call, E::repeat(E::sequence({gap, call}), 0)});
    // As all families begin an answer that is calls alone, or behind its reasoning.
    E calls_alone = E::sequence({E::repeat(E::literal("\n"), 0, 2), block});
    if (form.contains("answer") && !form.value("required", false)) {
      TANDEM_ASSIGN(E answer, parts_.answer(form));
      block = E::choice({std::move(answer), std::move(calls_alone)});
    } else if (!form.value("required", false)) {
      block = E::sequence({text_without(dsml ? kDsmlOpen : kHermesOpen), E::optional(std::move(block))});
    } else {
      block = std::move(calls_alone);
    }
    parts_.rules.rules[0].expression = std::move(block);
    return std::move(parts_.rules);
  }

 private:
  // How a value may be written: as it is, as JSON, or both.
  struct Value {
    std::optional<E> text, json;
  };

  Result<E> hermes_call(const Json& tool) {
    TANDEM_ASSIGN(E arguments, parts_.arguments(tool));
    return E::sequence({E::literal(std::string(kHermesOpen) + "\n{\"name\": \"" +
                                   tool.at("name").get<std::string>() + "\", \"arguments\": "),
                        std::move(arguments), E::literal("}\n" + std::string(kHermesClose))});
  }

  // Each property of a call, in the schema's order: `make` has what stands before and behind its value.
  template <class Make>
  Status add_parameters(const Json& tool, std::string_view value_close, Make&& make, std::vector<E>& parts) {
    const Json parameters = CallRules::parameters_of(tool);
    const Json properties = parameters.value("properties", Json::object());
    const Json required = parameters.value("required", Json::array());
    if (CallRules::is_strict(tool)) {
      TANDEM_TRY(json_schema_grammar(parameters.dump()));  // what it refuses, by name
    }
    for (const auto& [name, property] : properties.items()) {
      if (name.empty() || name.find_first_of("\"\n<") != std::string::npos) {
        return make_error(ErrorCode::unsupported,
                          "the property \"" + name + "\" cannot be written in a call: rename it");
      }
      TANDEM_ASSIGN(Value value,
                    parameter_value(property, parameters, CallRules::is_strict(tool), value_close));
      E parameter = make(name, std::move(value));
      bool needed = false;
      for (const Json& each : required) needed = needed || each == name;
      parts.push_back(needed ? std::move(parameter) : E::optional(std::move(parameter)));
    }
    return {};
  }

  Result<E> dsml_call(const Json& tool) {
    std::vector<E> parts{
        E::literal("<｜DSML｜invoke name=\"" + tool.at("name").get<std::string>() + "\">\n")};
    const auto parameter = [](const std::string& name, Value value) {
      std::vector<E> kinds;
      if (value.text) kinds.push_back(E::sequence({E::literal("true\">"), std::move(*value.text)}));
      if (value.json) kinds.push_back(E::sequence({E::literal("false\">"), std::move(*value.json)}));
      return E::sequence({E::literal("<｜DSML｜parameter name=\"" + name + "\" string=\""),
                          E::choice(std::move(kinds)), E::literal(std::string(kParameterClose) + "\n")});
    };
    TANDEM_TRY(add_parameters(tool, kParameterClose, parameter, parts));
    parts.push_back(E::literal("</｜DSML｜invoke>"));
    return E::sequence(std::move(parts));
  }

  // GLM-4.5 breaks lines between the elements, 4.7 does not.
  static E line_break() { return E::optional(E::literal("\n")); }

  Result<E> glm_call(const Json& tool) {
    std::vector<E> parts{E::literal(std::string(kHermesOpen) + tool.at("name").get<std::string>()),
                         line_break()};
    const auto parameter = [](const std::string& name, Value value) {
      // Any text is any JSON text as well.
      E written = value.text ? std::move(*value.text) : std::move(*value.json);
      return E::sequence({E::literal("<arg_key>" + name + "</arg_key>"), line_break(),
                          E::literal("<arg_value>"), std::move(written), E::literal(kValueClose),
                          line_break()});
    };
    TANDEM_TRY(add_parameters(tool, kValueClose, parameter, parts));
    parts.push_back(E::literal(kHermesClose));
    return E::sequence(std::move(parts));
  }

  E any_text(std::string_view close) {
    if (text_ == UINT32_MAX) text_ = parts_.rules.add("text", text_without(close));
    return E::call(text_);
  }

  // Plain strings are written as they are, all else as JSON.
  Result<Value> parameter_value(const Json& property, const Json& parameters, bool strict,
                                std::string_view close) {
    if (!strict) return Value{any_text(close), parts_.json.value()};
    if (is_plain_string(property)) return Value{any_text(close), {}};
    if (const std::vector<std::string> texts = texts_of(property); !texts.empty()) {
      std::vector<E> options;
      for (const std::string& text : texts) options.push_back(E::literal(text));
      return Value{E::choice(std::move(options)), {}};
    }
    Json document = property;
    if (document.is_object()) {
      for (const char* definitions : {"$defs", "definitions"}) {  // what its references mean
        if (parameters.contains(definitions)) document[definitions] = parameters[definitions];
      }
    }
    TANDEM_ASSIGN(E value, parts_.schema(document));
    return Value{{}, std::move(value)};
  }

  CallRules parts_;
  uint32_t text_ = UINT32_MAX;
};

}  // namespace

Result<GrammarRules> tool_call_grammar(std::string_view form) {
  const Json parsed = Json::parse(form, nullptr, false);
  const auto is_tool = [](const Json& tool) {
    return tool.is_object() && tool.value("name", Json()).is_string();
  };
  const Json tools = parsed.is_object() ? parsed.value("tools", Json()) : Json();
  const bool harmony = parsed.is_object() && parsed.value("format", Json()) == "harmony";
  // In harmony an answer of a given form is a message of its own, whether there are tools or not.
  const bool may_be_empty = harmony && parsed.contains("answer");
  if (!tools.is_array() || (tools.empty() && !may_be_empty) ||
      !std::all_of(tools.begin(), tools.end(), is_tool)) {
    return make_error(ErrorCode::invalid_argument,
                      "a form of tool calls must have a list of tools with names");
  }
  return harmony ? harmony_grammar(parsed) : CallGrammar().make(parsed);
}

bool is_written_as_text(const nlohmann::ordered_json& property) {
  return is_plain_string(property) || !texts_of(property).empty();
}

bool is_call_marker(std::string_view token) {
  return token == kHermesOpen || token == kHermesClose || token == "｜DSML｜" || token == "<arg_key>" ||
         token == "</arg_key>" || token == "<arg_value>" || token == kValueClose;
}

}  // namespace tandem
