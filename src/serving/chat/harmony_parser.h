// HarmonyParser: takes an answer in gpt-oss' harmony notation apart. An answer is one message or several,
//   <|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>final<|message|>...<|return|>
// the first without the <|start|>assistant that the prompt ended with. analysis is reasoning; final is
// content, and so is commentary, unless it is to a function: then it is a call, which `<|call|>` ends. The
// tokens that end an answer need not be in its text. A message that is none of these, or is malformed, comes
// back as content, as the model wrote it. One per answer; one thread at a time.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "serving/chat/json_scan.h"
#include "serving/chat/output_parser.h"

namespace tandem {

class HarmonyParser {
 public:
  // What is not wanted apart stays text, marks included.
  HarmonyParser(bool reasoning, bool calls) : reasoning_(reasoning), takes_calls_(calls) {}

  void push(std::string_view piece, OutputDeltas& out);
  void finish(OutputDeltas& out);

 private:
  enum class State : uint8_t {
    header,   // text_ is a header so far
    body,     // of reasoning or content
    call,     // text_ is the body of a call so far
    between,  // messages
    text,     // nothing that this notation has: all is content
  };
  bool step(bool at_end, OutputDeltas& out);
  bool read_header(bool at_end, OutputDeltas& out);
  bool read_body(bool at_end, OutputDeltas& out);
  bool read_call(bool at_end, OutputDeltas& out);
  void end_call(size_t end, size_t used, OutputDeltas& out);
  void give(OutputDelta::Kind kind, std::string_view text, OutputDeltas& out);

  bool reasoning_, takes_calls_;
  State state_ = State::header;
  OutputDelta::Kind kind_ = OutputDelta::Kind::content;  // of the body
  std::string header_;                                   // of the call, as it was written
  std::string name_;
  JsonScan arguments_;   // of the call, in text_
  bool is_call_ = true;  // so far: its body may still be an object and an end
  size_t searched_ = 0;  // of a body that is none: from here on its end may begin
  std::string text_;     // not decided
  bool first_ = true;
  uint32_t calls_ = 0;
};

}  // namespace tandem
