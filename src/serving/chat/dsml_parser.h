// DsmlParser: the tool calls of DeepSeek-V4, a block of
//   <｜DSML｜tool_calls>
//   <｜DSML｜invoke name="f">
//   <｜DSML｜parameter name="city" string="true">Paris</｜DSML｜parameter>
//   </｜DSML｜invoke>
//   </｜DSML｜tool_calls>
// with any blanks between the elements. string="true": the value is text; "false": it is JSON, and text after
// all where it is not well-formed. A second parameter of one name is malformed.
#pragma once

#include <string>
#include <vector>

#include "serving/chat/tool_call_parser.h"

namespace tandem {

class DsmlParser : public ToolCallParser {
 public:
  DsmlParser();

 protected:
  Step advance(std::string_view text, size_t& used, ParsedCall& call) override;
  void restart(bool new_block) override;

 private:
  enum class Match : uint8_t { yes, no, more };
  // Whether `text` has `word` at position at_; moves at_ behind it.
  Match take(std::string_view text, std::string_view word);
  Step take_name(std::string_view text);       // the rest of an invoke's head
  Step take_parameter(std::string_view text);  // the rest of a parameter's head
  Step take_value(std::string_view text);
  void add(std::string_view value);

  enum class Place : uint8_t { block, name, call, head, value };
  Place place_ = Place::block;
  size_t at_ = 0;        // bytes of the text that are decided
  size_t searched_ = 0;  // from here on the end of a value may begin
  ParsedCall call_;
  std::vector<std::string> keys_;
  std::string key_;
  bool is_text_ = false;
};

}  // namespace tandem
