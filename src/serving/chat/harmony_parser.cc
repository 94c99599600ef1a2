#include "serving/chat/harmony_parser.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "serving/chat/held_text.h"

namespace tandem {

using Kind = OutputDelta::Kind;

namespace {

constexpr std::string_view kStart = "<|start|>", kChannel = "<|channel|>", kMessage = "<|message|>";
// What a message ends with; the next one's beginning, too, where a model forgot.
constexpr std::array<std::string_view, 4> kEnds = {"<|end|>", "<|return|>", "<|call|>", kStart};
constexpr std::string_view kRecipient = "to=", kFunctions = "functions.";
// Role, recipient, channel and content type: a header that grows beyond this is somebody's text.
constexpr size_t kMostHeader = 512;

constexpr size_t kLongestEnd = 10;  // <|return|>

// Of what ends a message, the bytes that belong to it: the next message's beginning does not.
size_t end_length(std::string_view mark) {
  return mark == kStart ? 0 : mark.size();
}

struct End {
  size_t at = std::string_view::npos, length = 0;
  explicit operator bool() const { return at != std::string_view::npos; }
};

// The first of the marks in `text` from `from` on.
End find_end(std::string_view text, size_t from) {
  End end;
  for (const std::string_view mark : kEnds) {
    const size_t at = text.find(mark, from);
    if (at < end.at) end = {at, end_length(mark)};
  }
  return end;
}

// The word behind `mark`, up to a blank or the next mark.
std::string_view word_behind(std::string_view header, std::string_view mark) {
  const size_t at = header.find(mark);
  if (at == std::string_view::npos) return {};
  const std::string_view rest = header.substr(at + mark.size());
  return rest.substr(0, std::min(rest.find_first_of(kBlanks), rest.find("<|")));
}

// Whether an answer that begins with `text` may have a header.
bool may_be_header(std::string_view text) {
  for (const std::string_view begin : {kChannel, kMessage, kStart, std::string_view(" to="), kRecipient}) {
    if (text.starts_with(begin) || begin.starts_with(text)) return true;
  }
  return false;
}

}  // namespace

void HarmonyParser::give(Kind kind, std::string_view text, OutputDeltas& out) {
  if (text.empty()) return;
  if (!out.empty() && out.back().kind == kind) {
    out.back().text += text;
  } else {
    out.push_back({kind, std::string(text), 0});
  }
}

void HarmonyParser::push(std::string_view piece, OutputDeltas& out) {
  text_ += piece;
  while (step(false, out)) {
  }
}

void HarmonyParser::finish(OutputDeltas& out) {
  while (!text_.empty() && step(true, out)) {
  }
  if (state_ == State::call) end_call(text_.size(), text_.size(), out);
  give(Kind::content, text_, out);
  text_.clear();
}

// False: nothing is decided until more comes.
bool HarmonyParser::step(bool at_end, OutputDeltas& out) {
  switch (state_) {
    case State::header:
      return read_header(at_end, out);
    case State::body:
      return read_body(at_end, out);
    case State::call:
      return read_call(at_end, out);
    case State::between: {
      const size_t begin = text_.find_first_not_of(kBlanks);
      if (begin == std::string::npos) {
        if (at_end) text_.clear();
        return false;
      }
      const std::string_view rest = std::string_view(text_).substr(begin);
      if (rest.size() < kStart.size() && kStart.starts_with(rest)) return false;
      if (!rest.starts_with(kStart)) {
        state_ = State::text;
        return true;
      }
      text_.erase(0, begin);
      state_ = State::header;
      return true;
    }
    case State::text:
      give(Kind::content, text_, out);
      text_.clear();
      return false;
  }
  return false;
}

bool HarmonyParser::read_header(bool at_end, OutputDeltas& out) {
  if (text_.empty()) return false;
  const size_t message = text_.find(kMessage);
  const bool good = (!first_ || may_be_header(text_)) && std::min(message, text_.size()) <= kMostHeader;
  if (!good || (message == std::string::npos && at_end)) {
    state_ = State::text;
    return true;
  }
  if (message == std::string::npos) return false;
  first_ = false;
  header_ = text_.substr(0, message + kMessage.size());
  text_.erase(0, header_.size());
  const std::string_view channel = word_behind(header_, kChannel),
                         recipient = word_behind(header_, kRecipient);
  if (takes_calls_ && recipient.starts_with(kFunctions) && recipient.size() > kFunctions.size()) {
    name_ = recipient.substr(kFunctions.size());
    state_ = State::call;
    arguments_ = {};
    is_call_ = true;
    searched_ = 0;
    return true;
  }
  const bool analysis = channel == "analysis" && recipient.empty();
  const bool content =
      (channel == "final" || channel == "commentary" || channel.empty()) && recipient.empty();
  kind_ = analysis && reasoning_ ? Kind::reasoning : Kind::content;
  if (!content && kind_ != Kind::reasoning) give(Kind::content, header_, out);
  state_ = State::body;
  return true;
}

bool HarmonyParser::read_body(bool at_end, OutputDeltas& out) {
  const End found = find_end(text_, 0);
  size_t end = found.at;
  if (!found) {
    end = text_.size();
    for (const std::string_view mark : kEnds) {
      if (!at_end) end = std::min(end, text_.size() - marker_suffix(text_, mark));
    }
  }
  give(kind_, std::string_view(text_).substr(0, end), out);
  text_.erase(0, end + found.length);
  if (found) state_ = State::between;
  return static_cast<bool>(found);
}

// The marks are letters here: those in a string of the arguments end nothing. What turns out to be no object
// with an end behind it ends at the first.
bool HarmonyParser::read_call(bool at_end, OutputDeltas& out) {
  if (is_call_ && !arguments_.has_begun()) {
    arguments_.at = std::min(text_.size(), text_.find_first_not_of(kBlanks, arguments_.at));
    if (arguments_.at == text_.size()) return false;
    is_call_ = text_[arguments_.at] == '{';
  }
  if (is_call_ && !arguments_.read(text_)) {
    if (!at_end) return false;
    is_call_ = false;  // cut off
  }
  if (is_call_) {
    const size_t behind = std::min(text_.size(), text_.find_first_not_of(kBlanks, arguments_.end));
    const std::string_view rest = std::string_view(text_).substr(behind);
    bool may_end = false;
    for (const std::string_view mark : kEnds) {
      if (rest.starts_with(mark)) {
        end_call(behind, behind + end_length(mark), out);
        return true;
      }
      may_end = may_end || mark.starts_with(rest);
    }
    if (may_end) return false;
    is_call_ = false;
  }
  const End found = find_end(text_, searched_);
  if (found) {
    end_call(found.at, found.at + found.length, out);
    return true;
  }
  searched_ = text_.size() - std::min(text_.size(), kLongestEnd - 1);
  return false;
}

// The body of a call is text_ up to `end`, and what stood behind it up to `used`.
void HarmonyParser::end_call(size_t end, size_t used, OutputDeltas& out) {
  const std::string body = text_.substr(0, end);
  if (body.find_first_not_of(kBlanks) < body.size() && body[body.find_first_not_of(kBlanks)] == '{' &&
      nlohmann::json::accept(body)) {
    out.push_back({Kind::call, name_, calls_});
    out.push_back({Kind::arguments, body, calls_});
    ++calls_;
  } else {
    give(Kind::content, header_, out);
    give(Kind::content, std::string_view(text_).substr(0, used), out);
  }
  text_.erase(0, used);
  state_ = State::between;
}

}  // namespace tandem
