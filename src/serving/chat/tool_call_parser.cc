#include "serving/chat/tool_call_parser.h"

#include <utility>

#include "serving/chat/held_text.h"

namespace tandem {

using Kind = OutputDelta::Kind;

void ToolCallParser::push(std::string_view piece, OutputDeltas& out) {
  text_ += piece;
  run(false, out);
}

void ToolCallParser::finish(OutputDeltas& out) {
  run(true, out);
}

void ToolCallParser::content(std::string_view text, OutputDeltas& out) {
  if (text.empty()) return;
  behind_block_ = false;
  if (!out.empty() && out.back().kind == Kind::content) {
    out.back().text += text;
  } else {
    out.push_back({Kind::content, std::string(text), 0});
  }
}

// False when the text ends before the next step is decided.
bool ToolCallParser::run_block(bool at_end, OutputDeltas& out) {
  size_t used = 0;
  ParsedCall call;
  Step step = advance(text_, used, call);
  if (step == Step::more) {
    if (!at_end) return false;
    step = Step::malformed;  // cut off
  }
  if (step == Step::end && !block_has_call_) step = Step::malformed;  // an empty block calls nothing
  if (step == Step::malformed) {
    inside_ = false;
    if (block_has_call_) {
      behind_block_ = true;
    } else {
      content(gap_, out);
      content(marker_, out);
    }
    return true;  // the rest is looked at as content: a good block may follow
  }
  text_.erase(0, used);
  if (step != Step::end) {
    out.push_back({Kind::call, std::move(call.name), calls_});
    for (std::string& piece : call.arguments) out.push_back({Kind::arguments, std::move(piece), calls_});
    ++calls_;
    block_has_call_ = true;
  }
  if (step == Step::call) {
    restart(false);
    return true;
  }
  inside_ = false;
  behind_block_ = true;
  return true;
}

void ToolCallParser::run(bool at_end, OutputDeltas& out) {
  for (;;) {
    if (inside_) {
      if (!run_block(at_end, out)) return;
      continue;
    }
    const size_t marker = text_.find(marker_);
    if (marker != std::string::npos) {
      const size_t end = before_blanks(text_, marker);
      content(std::string_view(text_).substr(0, end), out);
      gap_ = text_.substr(end, marker - end);
      text_.erase(0, marker + marker_.size());
      inside_ = true;
      block_has_call_ = false;
      restart(true);
      continue;
    }
    if (at_end) {
      const bool between = behind_block_ && text_.size() <= kMaxHeldBlanks && is_blank(text_);
      if (!between) content(text_, out);
      text_.clear();
      return;
    }
    const size_t end = before_blanks(text_, text_.size() - marker_suffix(text_, marker_));
    content(std::string_view(text_).substr(0, end), out);
    text_.erase(0, end);
    return;
  }
}

}  // namespace tandem
