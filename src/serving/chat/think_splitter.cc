#include "serving/chat/think_splitter.h"

#include "serving/chat/held_text.h"

namespace tandem {

namespace {
constexpr std::string_view kOpen = "<think>", kClose = "</think>";
}

void ThinkSplitter::skip_line_breaks() {
  if (!trim_ || !at_start_) return;
  text_.erase(0, std::min(text_.size(), text_.find_first_not_of('\n')));
  at_start_ = text_.empty();
}

void ThinkSplitter::push(std::string_view piece, std::string& reasoning, std::string& content) {
  text_ += piece;
  if (state_ == State::before) {
    const size_t begin = text_.find_first_not_of(kBlanks);
    const std::string_view rest =
        begin == std::string::npos ? std::string_view() : std::string_view(text_).substr(begin);
    const size_t blanks = text_.size() - rest.size();
    if (blanks <= kMaxHeldBlanks) {
      if (rest.size() < kOpen.size() && kOpen.starts_with(rest)) return;
      if (rest.starts_with(kOpen)) {
        text_.erase(0, begin + kOpen.size());
        state_ = State::reasoning;
      }
    }
    if (state_ == State::before) {
      state_ = State::content;
      at_start_ = false;  // no tag: its line breaks are its own
    }
  }
  if (state_ == State::reasoning) {
    skip_line_breaks();
    const std::string_view blanks = trim_ ? "\n" : "";
    const size_t close = text_.find(kClose);
    const size_t end = close != std::string::npos ? close : text_.size() - marker_suffix(text_, kClose);
    const size_t safe = before_blanks(text_, end, blanks);
    reasoning.append(text_, 0, safe);
    if (close == std::string::npos) {
      text_.erase(0, safe);
      return;
    }
    text_.erase(0, close + kClose.size());
    state_ = State::content;
    at_start_ = true;
  }
  skip_line_breaks();
  content += text_;
  text_.clear();
}

void ThinkSplitter::finish(std::string& reasoning, std::string& content) {
  (state_ == State::reasoning ? reasoning : content) += text_;
  text_.clear();
}

}  // namespace tandem
