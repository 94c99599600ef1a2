#include "serving/chat/glm_parser.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "grammar/tool_call_grammar.h"
#include "serving/chat/held_text.h"

namespace tandem {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kBlock = "<tool_call>", kBlockEnd = "</tool_call>";
constexpr std::string_view kKey = "<arg_key>", kKeyEnd = "</arg_key>";
constexpr std::string_view kValue = "<arg_value>", kValueEnd = "</arg_value>";

bool is_name_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
         std::string_view("_-.:/").find(c) != std::string_view::npos;
}

std::string json_text(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

void add_types(const Json& property, std::vector<std::string>& out) {
  const auto type = property.find("type");
  if (type == property.end()) return;
  if (type->is_string()) out.push_back(type->get<std::string>());
  if (!type->is_array()) return;
  for (const Json& each : *type) {
    if (each.is_string()) out.push_back(each.get<std::string>());
  }
}

// What JSON schema calls the type of a value.
std::string_view type_name(const Json& value) {
  if (value.is_number_integer()) return "integer";
  if (value.is_number()) return "number";
  return value.is_array() ? "array" : value.type_name();  // object, string, boolean, null
}

}  // namespace

bool GlmParser::Types::has(std::string_view name) const {
  return std::find(names.begin(), names.end(), name) != names.end();
}

GlmParser::GlmParser(std::string_view tools_json) : ToolCallParser(kBlock) {
  const Json tools = Json::parse(tools_json, nullptr, false);
  if (!tools.is_array()) return;
  for (const Json& tool : tools) {
    if (!tool.is_object() || !tool.value("function", Json()).is_object()) continue;
    const Json& function = tool["function"];
    const Json parameters = function.value("parameters", Json());
    if (!function.value("name", Json()).is_string() || !parameters.is_object()) continue;
    const Json properties = parameters.value("properties", Json::object());
    for (const auto& [name, property] : properties.items()) {
      if (!property.is_object()) continue;
      Types types{.only_text = is_written_as_text(property)};
      add_types(property, types.names);
      for (const char* choice : {"anyOf", "oneOf"}) {
        const Json options = property.value(choice, Json());
        if (!options.is_array()) continue;
        for (const Json& option : options) {
          if (option.is_object()) add_types(option, types.names);
        }
      }
      tools_[function["name"].get<std::string>()][name] = std::move(types);
    }
  }
}

void GlmParser::restart(bool /*new_block*/) {
  place_ = Place::name;
  at_ = searched_ = 0;
  call_ = {};
  keys_.clear();
}

void GlmParser::skip_blanks(std::string_view text) {
  at_ = std::min(text.size(), text.find_first_not_of(kBlanks, at_));
}

GlmParser::Match GlmParser::take(std::string_view text, std::string_view word) {
  const std::string_view rest = text.substr(at_);
  if (rest.starts_with(word)) {
    at_ += word.size();
    return Match::yes;
  }
  return word.starts_with(rest) ? Match::more : Match::no;
}

ToolCallParser::Step GlmParser::advance(std::string_view text, size_t& used, ParsedCall& call) {
  for (;;) {
    if (place_ == Place::arguments) {
      skip_blanks(text);
      const Match open = take(text, kKey);
      if (open == Match::yes) {
        place_ = Place::key;
        continue;
      }
      const Match close = take(text, kBlockEnd);
      if (close == Match::no && open == Match::no) return Step::malformed;
      if (close != Match::yes) return Step::more;
      used = at_;
      call_.arguments.emplace_back(keys_.empty() ? "{}" : "}");
      call = std::move(call_);
      return Step::last_call;
    }
    if (place_ == Place::between) {
      skip_blanks(text);
      const Match open = take(text, kValue);
      if (open != Match::yes) return open == Match::more ? Step::more : Step::malformed;
      searched_ = at_;
      place_ = Place::value;
    }
    const Step step = place_ == Place::name  ? take_name(text)
                      : place_ == Place::key ? take_key(text)
                                             : take_value(text);
    if (step == Step::more || step == Step::malformed) return step;
  }
}

ToolCallParser::Step GlmParser::take_name(std::string_view text) {
  skip_blanks(text);
  const auto begin = text.begin() + static_cast<std::ptrdiff_t>(at_);
  const auto end = std::find_if_not(begin, text.end(), is_name_character);
  if (end == text.end()) return Step::more;
  if (end == begin) return Step::malformed;
  const auto behind = static_cast<size_t>(end - text.begin());
  const size_t next = text.find_first_not_of(kBlanks, behind);
  if (next == std::string_view::npos) return Step::more;
  if (text[next] != '<') return Step::malformed;  // words, not a call
  call_.name = text.substr(at_, behind - at_);
  at_ = behind;
  place_ = Place::arguments;
  return Step::call;
}

ToolCallParser::Step GlmParser::take_key(std::string_view text) {
  const size_t end = text.find_first_of("<\n", at_);
  if (end == std::string_view::npos) return Step::more;
  key_ = text.substr(at_, end - at_);
  const size_t begin = std::exchange(at_, end);
  const Match close = take(text, kKeyEnd);
  if (close == Match::more) {
    at_ = begin;
    return Step::more;
  }
  if (close == Match::no || key_.empty()) return Step::malformed;
  if (std::find(keys_.begin(), keys_.end(), key_) != keys_.end()) return Step::malformed;
  place_ = Place::between;
  return Step::call;
}

ToolCallParser::Step GlmParser::take_value(std::string_view text) {
  const size_t end = text.find(kValueEnd, searched_);
  if (end == std::string_view::npos) {
    searched_ = std::max(at_, text.size() - std::min(text.size(), kValueEnd.size() - 1));
    return Step::more;
  }
  add(text.substr(at_, end - at_));
  at_ = end + kValueEnd.size();
  place_ = Place::arguments;
  return Step::call;
}

void GlmParser::add(std::string_view value) {
  call_.arguments.push_back((keys_.empty() ? "{" : ", ") + json_text(key_) + ": " + value_json(value));
  keys_.push_back(key_);
}

std::string GlmParser::value_json(std::string_view value) const {
  static const Types kAny;
  const auto tool = tools_.find(call_.name);
  const Types* types = &kAny;
  if (tool != tools_.end()) {
    const auto argument = tool->second.find(key_);
    if (argument != tool->second.end()) types = &argument->second;
  }
  if (types->only_text) return json_text(value);
  const Json parsed = Json::parse(value, nullptr, false);
  if (parsed.is_discarded()) return json_text(value);
  const std::string_view type = type_name(parsed);
  const bool fits = types->has(type) || (type == "integer" && types->has("number"));
  if (!fits && types->has("string")) return json_text(value);
  const size_t begin = value.find_first_not_of(kBlanks);
  return std::string(value.substr(begin, value.find_last_not_of(kBlanks) + 1 - begin));  // as it was written
}

}  // namespace tandem
