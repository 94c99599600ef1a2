// ThinkSplitter: parts reasoning from content at <think> and </think>. Reasoning is open from the start when
// the prompt ended inside it; otherwise it opens only with a <think> that the answer begins with. The first
// </think> ends it. One per answer; one thread at a time.
#pragma once

#include <string>
#include <string_view>

namespace tandem {

class ThinkSplitter {
 public:
  // `trim`: line breaks directly inside the tags, and behind </think>, belong to the tags.
  ThinkSplitter(bool trim, bool open) : trim_(trim), state_(open ? State::reasoning : State::before) {}

  void push(std::string_view piece, std::string& reasoning, std::string& content);
  void finish(std::string& reasoning, std::string& content);

 private:
  enum class State { before, reasoning, content };
  void skip_line_breaks();

  bool trim_;
  State state_;
  bool at_start_ = true;  // of reasoning or content: nothing of it has been given yet
  std::string text_;      // held back
};

}  // namespace tandem
