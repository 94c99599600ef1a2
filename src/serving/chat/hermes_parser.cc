#include "serving/chat/hermes_parser.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "serving/chat/held_text.h"
#include "serving/chat/json_members.h"

namespace tandem {

namespace {

constexpr std::string_view kBlock = "<tool_call>", kBlockEnd = "</tool_call>";

bool is_object(std::string_view text) {
  return text.starts_with('{') && nlohmann::json::accept(text);
}

bool read_call(std::string_view object, ParsedCall& call) {
  std::string arguments = "{}";
  for (const JsonMember& member : json_members(object)) {
    const nlohmann::json value = nlohmann::json::parse(member.value, nullptr, false);
    if (member.key == "name" && value.is_string()) {
      call.name = value.get<std::string>();
    } else if (member.key == "arguments" && !value.is_null()) {
      arguments = value.is_string() ? value.get<std::string>() : std::string(member.value);
    }
  }
  call.arguments = {arguments};
  return !call.name.empty() && is_object(arguments);
}

}  // namespace

HermesParser::HermesParser() : ToolCallParser(kBlock) {}

void HermesParser::restart(bool /*new_block*/) {
  begin_ = 0;
  scan_ = {};
}

ToolCallParser::Step HermesParser::advance(std::string_view text, size_t& used, ParsedCall& call) {
  if (!scan_.has_begun()) {
    begin_ = scan_.at = std::min(text.size(), text.find_first_not_of(kBlanks, scan_.at));
    if (begin_ == text.size()) return Step::more;
    if (text[begin_] != '{') return Step::malformed;
  }
  if (!scan_.read(text)) return Step::more;
  const size_t close = std::min(text.size(), text.find_first_not_of(kBlanks, scan_.end));
  const std::string_view rest = text.substr(close);
  if (!rest.starts_with(kBlockEnd)) return kBlockEnd.starts_with(rest) ? Step::more : Step::malformed;
  const std::string_view object = text.substr(begin_, scan_.end - begin_);
  if (!is_object(object) || !read_call(object, call)) return Step::malformed;
  used = close + kBlockEnd.size();
  return Step::last_call;
}

}  // namespace tandem
