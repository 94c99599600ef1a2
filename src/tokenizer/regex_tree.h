// The tree between a pattern's text and what is made of it: a program here (regex_compile.cc), a grammar
// elsewhere.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "tokenizer/codepoint_set.h"

namespace tandem {

struct RegexNode {
  enum class Kind : uint8_t { set, sequence, choice, repeat, look, begin, end };
  Kind kind = Kind::sequence;
  bool negated = false;     // look
  bool possessive = false;  // repeat; its child is then one set
  uint32_t min = 1, max = 1;
  CodepointSet set = {};
  std::vector<RegexNode> children = {};
};

enum class RegexDialect : uint8_t {
  pre_tokenizer,  // Oniguruma's, as regex.h says
  // What JSON schemas (ECMA-262) and Python's re have in common: \d, \w and \s are ASCII, a class holds no
  // class, groups may have names, "^" is `begin`. Lazy repetition is read as greedy: it matches the same
  // texts.
  text,
};

// The tree's depth and the repeat counts are bounded. Errors: as Regex::compile.
Result<RegexNode> parse_regex(std::string_view pattern, RegexDialect dialect);

}  // namespace tandem
