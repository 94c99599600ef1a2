// Template text to tokens, with Jinja's rules for white space: trim_blocks and lstrip_blocks on, `-` and `+`
// marks, the last newline dropped. These are the settings of transformers' apply_chat_template.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace tandem::jinja {

struct Token {
  enum class Kind : uint8_t {
    data,
    block_begin,
    block_end,
    variable_begin,
    variable_end,
    name,
    string,
    integer,
    number,
    op,
    end
  };
  Kind kind;
  std::string text;  // data, name, operator; string: the unescaped value; numbers as written, without "_"
  int line = 0;
};

// Errors: `invalid_argument` naming the line.
Result<std::vector<Token>> tokenize(std::string_view source);

}  // namespace tandem::jinja
