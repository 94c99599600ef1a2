// The tree between a pattern's text and its program; private to regex_parse.cc and regex_compile.cc.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "tokenizer/codepoint_set.h"

namespace tandem {

struct RegexNode {
  enum class Kind : uint8_t { set, sequence, choice, repeat, look, end };
  Kind kind = Kind::sequence;
  bool negated = false;     // look
  bool possessive = false;  // repeat; its child is then one set
  uint32_t min = 1, max = 1;
  CodepointSet set = {};
  std::vector<RegexNode> children = {};
};

// `pattern` as Oniguruma reads it. The tree's depth and the repeat counts are bounded.
Result<RegexNode> parse_regex(std::string_view pattern);

}  // namespace tandem
