// HermesParser: tool calls as Hermes and Qwen3 write them, each in a block of its own:
//   <tool_call>
//   {"name": "f", "arguments": {"city": "Paris"}}
//   </tool_call>
// The arguments are given as they stand in the text. Arguments that are a string with an object in it count
// as that object; none, or null, as {}.
#pragma once

#include "serving/chat/json_scan.h"
#include "serving/chat/tool_call_parser.h"

namespace tandem {

class HermesParser : public ToolCallParser {
 public:
  HermesParser();

 protected:
  Step advance(std::string_view text, size_t& used, ParsedCall& call) override;
  void restart(bool new_block) override;

 private:
  size_t begin_ = 0;  // of the object
  JsonScan scan_;
};

}  // namespace tandem
