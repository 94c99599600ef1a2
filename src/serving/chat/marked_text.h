// MarkedText: a prompt under construction that remembers which bytes came from the request. One thread.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "serving/chat/chat_message.h"

namespace tandem {

class MarkedText {
 public:
  // Text of the format: control tokens in it are control tokens.
  void format(std::string_view text) { prompt_.text += text; }
  // Text of the request: never a control token.
  void request(std::string_view text) {
    if (text.empty()) return;
    auto& ranges = prompt_.plain_ranges;
    const size_t begin = prompt_.text.size();
    prompt_.text += text;
    if (!ranges.empty() && ranges.back().end == begin) {
      ranges.back().end = prompt_.text.size();
    } else {
      ranges.push_back({begin, prompt_.text.size()});
    }
  }
  ChatPrompt take() { return std::move(prompt_); }

 private:
  ChatPrompt prompt_;
};

}  // namespace tandem
