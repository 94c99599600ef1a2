// GlmParser: tool calls as GLM-4.5 and later write them, each in a block of its own:
//   <tool_call>f
//   <arg_key>city</arg_key>
//   <arg_value>Paris</arg_value>
//   </tool_call>
// with any blanks, or none, between the elements. Whether a value is text or JSON stands nowhere: the tool's
// schema says it. Text stays as it is where the schema wants nothing but that; otherwise a value is JSON if
// it is well-formed and of a type that the schema has, and text after all if not. A second argument of one
// name is malformed.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "serving/chat/tool_call_parser.h"

namespace tandem {

class GlmParser : public ToolCallParser {
 public:
  // `tools_json`: the request's tools as OpenAI writes them, a JSON list; anything else knows no types.
  explicit GlmParser(std::string_view tools_json);

 protected:
  Step advance(std::string_view text, size_t& used, ParsedCall& call) override;
  void restart(bool new_block) override;

 private:
  struct Types {
    bool only_text = false;
    std::vector<std::string> names = {};  // JSON schema's; empty: any
    bool has(std::string_view name) const;
  };
  enum class Match : uint8_t { yes, no, more };
  Match take(std::string_view text, std::string_view word);  // moves at_ behind it
  Step take_name(std::string_view text);
  Step take_key(std::string_view text);
  Step take_value(std::string_view text);
  void skip_blanks(std::string_view text);
  void add(std::string_view value);
  std::string value_json(std::string_view value) const;

  std::map<std::string, std::map<std::string, Types>, std::less<>> tools_;  // by tool, by argument
  enum class Place : uint8_t { name, arguments, key, between, value };
  Place place_ = Place::name;
  size_t at_ = 0;        // bytes of the text that are decided
  size_t searched_ = 0;  // from here on the end of a value may begin
  ParsedCall call_;
  std::vector<std::string> keys_;
  std::string key_;
};

}  // namespace tandem
