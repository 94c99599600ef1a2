// Unicode as the reference tokenizer sees it: UTF-8 in and out, and general categories from a generated
// table, so that tokens do not depend on the system's Unicode version. Pure functions; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tandem {

inline constexpr char32_t kMaxCodepoint = 0x10FFFF;

// The order of tools/make_unicode_table.py.
enum class Category : uint8_t {
  Lu,
  Ll,
  Lt,
  Lm,
  Lo,
  Mn,
  Mc,
  Me,
  Nd,
  Nl,
  No,
  Pc,
  Pd,
  Ps,
  Pe,
  Pi,
  Pf,
  Po,
  Sm,
  Sc,
  Sk,
  So,
  Zs,
  Zl,
  Zp,
  Cc,
  Cf,
  Co,
  Cn,
};
inline constexpr int kCategoryCount = 29;

Category general_category(char32_t codepoint);

// Unicode White_Space: what `\s` is in every pattern that we read.
bool is_white_space(char32_t codepoint);

// A word character of the reference's `single_word` rule: letters, marks, digits, connectors.
bool is_word(char32_t codepoint);

// Offset of the first byte that is not part of well-formed UTF-8, or npos.
size_t find_invalid_utf8(std::string_view text);

// Bytes at the end of `text` (0..3) that start a character and could still be completed by more bytes.
size_t incomplete_utf8_suffix(std::string_view text);

// Every maximal ill-formed part becomes one U+FFFD; the rest is unchanged.
std::string replace_invalid_utf8(std::string_view text);

void append_utf8(std::string& out, char32_t codepoint);

// Reads the character at `offset` of well-formed UTF-8 and moves past it.
char32_t next_codepoint(std::string_view text, size_t& offset);

// The character that ends before `offset` (> 0) of well-formed UTF-8, moving to its start.
char32_t previous_codepoint(std::string_view text, size_t& offset);

}  // namespace tandem
