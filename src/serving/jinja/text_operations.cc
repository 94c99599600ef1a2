#include "serving/jinja/text_operations.h"

#include <utf8proc.h>

#include <algorithm>

#include "tokenizer/unicode.h"

namespace tandem::jinja {
namespace {

bool is_python_space(char32_t c) {
  return is_white_space(c) || (c >= 0x1C && c <= 0x1F);
}

bool is_cased(char32_t c) {
  const Category category = general_category(c);
  return category == Category::Lu || category == Category::Ll || category == Category::Lt;
}

void append_upper(std::string& out, char32_t c) {
  if (c == U'ß') {
    out += "SS";
  } else {
    append_utf8(out, static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(c))));
  }
}

void append_lower(std::string& out, char32_t c) {
  append_utf8(out, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
}

}  // namespace

Text strip(const Text& text, const Text* characters, bool left, bool right) {
  std::u32string set;
  if (characters != nullptr) {
    for (size_t offset = 0; offset < characters->bytes.size();)
      set += next_codepoint(characters->bytes, offset);
  }
  const auto stripped = [&](char32_t c) {
    return characters == nullptr ? is_python_space(c) : set.find(c) != std::u32string::npos;
  };
  size_t begin = 0;
  size_t end = text.bytes.size();
  while (left && begin < end) {
    size_t next = begin;
    if (!stripped(next_codepoint(text.bytes, next))) break;
    begin = next;
  }
  while (right && end > begin) {
    size_t before = end;
    if (!stripped(previous_codepoint(text.bytes, before))) break;
    end = before;
  }
  return text.slice(begin, end);
}

std::vector<Text> split(const Text& text, const Text* separator, int64_t most) {
  std::vector<Text> parts;
  const std::string& bytes = text.bytes;
  if (separator != nullptr) {
    size_t begin = 0;
    while (most < 0 || static_cast<int64_t>(parts.size()) < most) {
      const size_t hit = bytes.find(separator->bytes, begin);
      if (hit == std::string::npos) break;
      parts.push_back(text.slice(begin, hit));
      begin = hit + separator->bytes.size();
    }
    parts.push_back(text.slice(begin, bytes.size()));
    return parts;
  }
  size_t begin = 0;
  while (true) {
    while (begin < bytes.size()) {
      size_t next = begin;
      if (!is_python_space(next_codepoint(bytes, next))) break;
      begin = next;
    }
    if (begin == bytes.size()) return parts;
    if (most >= 0 && static_cast<int64_t>(parts.size()) >= most) {
      parts.push_back(text.slice(begin, bytes.size()));  // with the white space at its end
      return parts;
    }
    size_t end = begin;
    while (end < bytes.size()) {
      size_t next = end;
      if (is_python_space(next_codepoint(bytes, next))) break;
      end = next;
    }
    parts.push_back(text.slice(begin, end));
    begin = end;
  }
}

std::vector<Text> split_right(const Text& text, const Text& separator, int64_t most) {
  std::vector<Text> parts;
  size_t end = text.bytes.size();
  const size_t length = separator.bytes.size();
  while (most < 0 || static_cast<int64_t>(parts.size()) < most) {
    if (end < length) break;
    const size_t hit = text.bytes.rfind(separator.bytes, end - length);
    if (hit == std::string::npos) break;
    parts.push_back(text.slice(hit + length, end));
    end = hit;
  }
  parts.push_back(text.slice(0, end));
  std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<Text> split_lines(const Text& text) {
  std::vector<Text> lines;
  size_t begin = 0;
  for (size_t offset = 0; offset < text.bytes.size();) {
    const size_t at = offset;
    const char32_t c = next_codepoint(text.bytes, offset);
    if (!((c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029))
      continue;
    lines.push_back(text.slice(begin, at));
    if (c == '\r' && offset < text.bytes.size() && text.bytes[offset] == '\n') ++offset;
    begin = offset;
  }
  if (begin < text.bytes.size()) lines.push_back(text.slice(begin, text.bytes.size()));
  return lines;
}

Result<Text> replace(BuiltinContext& context, const Text& text, const Text& from, const Text& to,
                     int64_t most) {
  Text out;
  size_t begin = 0;
  int64_t count = 0;
  if (from.bytes.empty()) return type_error("a replacement of the empty string is not supported");
  for (; most < 0 || count < most; ++count) {
    const size_t hit = text.bytes.find(from.bytes, begin);
    if (hit == std::string::npos) break;
    TANDEM_TRY(context.budget.grow(hit - begin + to.bytes.size()));
    out.append(text.slice(begin, hit));
    out.append(to);
    begin = hit + from.bytes.size();
  }
  TANDEM_TRY(context.budget.grow(text.bytes.size() - begin));
  out.append(text.slice(begin, text.bytes.size()));
  return out;
}

Text upper(const Text& text) {
  std::string out;
  for (size_t offset = 0; offset < text.bytes.size();) append_upper(out, next_codepoint(text.bytes, offset));
  return Text::derived(std::move(out), text);
}

Text lower(const Text& text) {
  std::string out;
  for (size_t offset = 0; offset < text.bytes.size();) append_lower(out, next_codepoint(text.bytes, offset));
  return Text::derived(std::move(out), text);
}

Text capitalize(const Text& text) {
  std::string out;
  for (size_t offset = 0; offset < text.bytes.size();) {
    const bool first = offset == 0;
    const char32_t c = next_codepoint(text.bytes, offset);
    first ? append_upper(out, c) : append_lower(out, c);
  }
  return Text::derived(std::move(out), text);
}

Text title(const Text& text, bool filter) {
  std::string out;
  bool inside = false;
  for (size_t offset = 0; offset < text.bytes.size();) {
    const char32_t c = next_codepoint(text.bytes, offset);
    inside ? append_lower(out, c) : append_upper(out, c);
    inside = filter ? !is_python_space(c) &&
                          (c >= 0x80 ||
                           std::string_view("-({[<").find(static_cast<char>(c)) == std::string_view::npos)
                    : is_cased(c);
  }
  return Text::derived(std::move(out), text);
}

size_t length(const Text& text) {
  return static_cast<size_t>(std::count_if(text.bytes.begin(), text.bytes.end(), [](char byte) {
    return (static_cast<uint8_t>(byte) & 0xC0) != 0x80;
  }));
}

}  // namespace tandem::jinja
