#include "serving/chat/json_members.h"

#include <nlohmann/json.hpp>

namespace tandem {

namespace {

constexpr std::string_view kJsonBlanks = " \t\r\n";

// The end of the value that begins at `at`, blanks behind it included.
size_t value_end(std::string_view text, size_t at) {
  int depth = 0;
  bool in_string = false;
  for (; at < text.size(); ++at) {
    const char c = text[at];
    if (in_string) {
      if (c == '\\') ++at;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      ++depth;
    } else if (c == '}' || c == ']') {
      if (depth-- == 0) return at;
    } else if ((c == ',' || c == ':') && depth == 0) {
      return at;
    }
  }
  return at;
}

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(kJsonBlanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kJsonBlanks) + 1 - begin);
}

}  // namespace

std::vector<JsonMember> json_members(std::string_view object) {
  std::vector<JsonMember> out;
  size_t at = object.find('{') + 1;
  while (at < object.size()) {
    const size_t colon = value_end(object, at);
    if (colon >= object.size() || object[colon] != ':') break;  // the object is empty
    const size_t end = value_end(object, colon + 1);
    const auto key = nlohmann::json::parse(trimmed(object.substr(at, colon - at)), nullptr, false);
    if (!key.is_string()) break;
    out.push_back({key.get<std::string>(), trimmed(object.substr(colon + 1, end - colon - 1))});
    at = end + 1;
  }
  return out;
}

}  // namespace tandem
