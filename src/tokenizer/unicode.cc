#include "tokenizer/unicode.h"

#include <algorithm>

#include "tokenizer/unicode_table.h"

namespace tandem {
namespace {

struct Sequence {
  size_t bytes;   // length of the well-formed or of the maximal ill-formed part, at least 1
  bool complete;  // a whole character
  bool cut;       // ill-formed only because the text ends
};

// One step of the Unicode standard's table 3-7.
Sequence scan(std::string_view text, size_t offset) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[offset + i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return {1, true, false};
  if (lead < 0xC2 || lead > 0xF4) return {1, false, false};
  const size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  // Only the second byte has a narrower range: no overlong forms, no surrogates, nothing above U+10FFFF.
  uint8_t low = 0x80;
  uint8_t high = 0xBF;
  if (lead == 0xE0) low = 0xA0;
  if (lead == 0xED) high = 0x9F;
  if (lead == 0xF0) low = 0x90;
  if (lead == 0xF4) high = 0x8F;
  for (size_t i = 1; i < length; ++i) {
    if (offset + i == text.size()) return {i, false, true};
    if (byte(i) < low || byte(i) > high) return {i, false, false};
    low = 0x80;
    high = 0xBF;
  }
  return {length, true, false};
}

}  // namespace

Category general_category(char32_t codepoint) {
  const uint32_t key = static_cast<uint32_t>(codepoint) << 5 | 31;
  const uint32_t* run = std::upper_bound(kCategoryRuns, kCategoryRuns + kCategoryRunCount, key) - 1;
  // The first run begins at 0, so it is never the upper bound.
  // NOLINTNEXTLINE(clang-analyzer-security.ArrayBound)
  return static_cast<Category>(*run & 31);
}

bool is_white_space(char32_t c) {
  return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

bool is_word(char32_t c) {
  switch (general_category(c)) {
    case Category::Lu:
    case Category::Ll:
    case Category::Lt:
    case Category::Lm:
    case Category::Lo:
    case Category::Mn:
    case Category::Mc:
    case Category::Me:
    case Category::Nd:
    case Category::Nl:
    case Category::Pc:
      return true;
    default:
      break;
  }
  // Joiners, and the circled and squared letters, which are alphabetic symbols.
  return c == 0x200C || c == 0x200D || (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) ||
         (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189);
}

size_t find_invalid_utf8(std::string_view text) {
  size_t offset = 0;
  while (offset < text.size()) {
    if (static_cast<uint8_t>(text[offset]) < 0x80) {
      ++offset;
      continue;
    }
    const Sequence sequence = scan(text, offset);
    if (!sequence.complete) return offset;
    offset += sequence.bytes;
  }
  return std::string_view::npos;
}

size_t incomplete_utf8_suffix(std::string_view text) {
  // A character has at most 4 bytes, so an unfinished one starts within the last 3.
  for (size_t back = 1; back <= std::min<size_t>(3, text.size()); ++back) {
    const auto byte = static_cast<uint8_t>(text[text.size() - back]);
    if ((byte & 0xC0) == 0x80) continue;
    return scan(text, text.size() - back).cut ? back : 0;
  }
  return 0;
}

std::string replace_invalid_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t offset = 0; offset < text.size();) {
    const Sequence sequence = scan(text, offset);
    if (sequence.complete) {
      out.append(text.substr(offset, sequence.bytes));
    } else {
      out += "\xEF\xBF\xBD";
    }
    offset += sequence.bytes;
  }
  return out;
}

void append_utf8(std::string& out, char32_t c) {
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else if (c < 0x800) {
    out += static_cast<char>(0xC0 | c >> 6);
    out += static_cast<char>(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    out += static_cast<char>(0xE0 | c >> 12);
    out += static_cast<char>(0x80 | (c >> 6 & 0x3F));
    out += static_cast<char>(0x80 | (c & 0x3F));
  } else {
    out += static_cast<char>(0xF0 | c >> 18);
    out += static_cast<char>(0x80 | (c >> 12 & 0x3F));
    out += static_cast<char>(0x80 | (c >> 6 & 0x3F));
    out += static_cast<char>(0x80 | (c & 0x3F));
  }
}

char32_t next_codepoint(std::string_view text, size_t& offset) {
  const auto byte = [&](size_t i) { return static_cast<char32_t>(static_cast<uint8_t>(text[offset + i])); };
  const char32_t lead = byte(0);
  char32_t c = lead;
  if (lead < 0x80) {
    offset += 1;
  } else if (lead < 0xE0) {
    c = (lead & 0x1F) << 6 | (byte(1) & 0x3F);
    offset += 2;
  } else if (lead < 0xF0) {
    c = (lead & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F);
    offset += 3;
  } else {
    c = (lead & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F);
    offset += 4;
  }
  return c;
}

char32_t previous_codepoint(std::string_view text, size_t& offset) {
  do {
    --offset;
  } while ((static_cast<uint8_t>(text[offset]) & 0xC0) == 0x80);
  size_t at = offset;
  return next_codepoint(text, at);
}

}  // namespace tandem
