#include "serving/chat/dsml_parser.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "serving/chat/held_text.h"

namespace tandem {

namespace {

constexpr std::string_view kBlock = "<｜DSML｜tool_calls>", kBlockEnd = "</｜DSML｜tool_calls>";
constexpr std::string_view kInvoke = "<｜DSML｜invoke name=\"", kInvokeEnd = "</｜DSML｜invoke>";
constexpr std::string_view kParameter = "<｜DSML｜parameter name=\"", kParameterEnd = "</｜DSML｜parameter>";
constexpr std::string_view kString = "\" string=\"", kTrue = "true\">", kFalse = "false\">";

std::string json_text(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

DsmlParser::DsmlParser() : ToolCallParser(kBlock) {}

void DsmlParser::restart(bool /*new_block*/) {
  place_ = Place::block;
  at_ = 0;
  call_ = {};
  keys_.clear();
}

DsmlParser::Match DsmlParser::take(std::string_view text, std::string_view word) {
  const std::string_view rest = text.substr(at_);
  if (rest.starts_with(word)) {
    at_ += word.size();
    return Match::yes;
  }
  return word.starts_with(rest) ? Match::more : Match::no;
}

ToolCallParser::Step DsmlParser::advance(std::string_view text, size_t& used, ParsedCall& call) {
  for (;;) {
    if (place_ == Place::block || place_ == Place::call) {
      at_ = std::min(text.size(), text.find_first_not_of(kBlanks, at_));
      if (at_ == text.size()) return Step::more;
      const bool in_call = place_ == Place::call;
      const Match open = take(text, in_call ? kParameter : kInvoke);
      if (open == Match::yes) {
        place_ = in_call ? Place::head : Place::name;
        continue;
      }
      const Match close = take(text, in_call ? kInvokeEnd : kBlockEnd);
      if (close == Match::no) return open == Match::more ? Step::more : Step::malformed;
      if (close == Match::more) return Step::more;
      used = at_;
      if (!in_call) return Step::end;
      call_.arguments.emplace_back(keys_.empty() ? "{}" : "}");
      call = std::move(call_);
      return Step::call;
    }
    const Step step = place_ == Place::name   ? take_name(text)
                      : place_ == Place::head ? take_parameter(text)
                                              : take_value(text);
    if (step == Step::more || step == Step::malformed) return step;
  }
}

ToolCallParser::Step DsmlParser::take_name(std::string_view text) {
  const size_t end = text.find_first_of("\"\n", at_);
  if (end == std::string_view::npos || end + 1 == text.size()) return Step::more;
  if (end == at_ || text[end] == '\n' || text[end + 1] != '>') return Step::malformed;
  call_.name = text.substr(at_, end - at_);
  at_ = end + 2;
  place_ = Place::call;
  return Step::call;
}

ToolCallParser::Step DsmlParser::take_parameter(std::string_view text) {
  const size_t line = text.find('\n', at_);
  const size_t end = text.substr(0, line).find(kString, at_);
  if (end == std::string_view::npos) return line == std::string_view::npos ? Step::more : Step::malformed;
  key_ = text.substr(at_, end - at_);
  const size_t head = std::exchange(at_, end + kString.size());
  const Match text_value = take(text, kTrue);
  const Match json_value = text_value == Match::yes ? Match::no : take(text, kFalse);
  if (text_value != Match::yes && json_value != Match::yes) {
    at_ = head;
    return text_value == Match::no && json_value == Match::no ? Step::malformed : Step::more;
  }
  if (std::find(keys_.begin(), keys_.end(), key_) != keys_.end()) return Step::malformed;
  is_text_ = text_value == Match::yes;
  searched_ = at_;
  place_ = Place::value;
  return Step::call;
}

ToolCallParser::Step DsmlParser::take_value(std::string_view text) {
  const size_t end = text.find(kParameterEnd, searched_);
  if (end == std::string_view::npos) {
    searched_ = std::max(at_, text.size() - std::min(text.size(), kParameterEnd.size() - 1));
    return Step::more;
  }
  add(text.substr(at_, end - at_));
  at_ = end + kParameterEnd.size();
  place_ = Place::call;
  return Step::call;
}

void DsmlParser::add(std::string_view value) {
  std::string piece = (keys_.empty() ? "{" : ", ") + json_text(key_) + ": ";
  piece += !is_text_ && nlohmann::json::accept(value) ? std::string(value) : json_text(value);
  call_.arguments.push_back(std::move(piece));
  keys_.push_back(key_);
}

}  // namespace tandem
