#include "serving/jinja/lexer.h"

#include <fmt/format.h>

#include <algorithm>

#include "tokenizer/unicode.h"

namespace tandem::jinja {
namespace {

// Python's idea of white space, in ASCII and beyond.
bool is_python_space(char32_t c) {
  return is_white_space(c) || (c >= 0x1C && c <= 0x1F);
}

bool is_name_start(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}
bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

class Lexer {
 public:
  explicit Lexer(std::string source) : source_(std::move(source)) {}

  Result<std::vector<Token>> run() {
    while (at_ < source_.size()) TANDEM_TRY(read_data());
    push(Token::Kind::end, "");
    return std::move(tokens_);
  }

 private:
  std::unexpected<Error> bad(std::string_view what) const {
    return make_error(ErrorCode::invalid_argument, fmt::format("chat template line {}: {}", line_, what));
  }
  bool looking_at(std::string_view text) const {
    return std::string_view(source_).substr(at_).starts_with(text);
  }
  char peek(size_t ahead = 0) const { return at_ + ahead < source_.size() ? source_[at_ + ahead] : '\0'; }
  void push(Token::Kind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_}); }
  void advance(size_t bytes) {
    line_ += static_cast<int>(std::count(source_.begin() + at_, source_.begin() + at_ + bytes, '\n'));
    at_ += bytes;
  }
  void skip_space() {
    while (at_ < source_.size()) {
      size_t next = at_;
      if (!is_python_space(next_codepoint(source_, next))) return;
      advance(next - at_);
    }
  }

  // Text up to the next tag, and the opening of that tag.
  Status read_data() {
    const size_t begin = at_;
    size_t tag = begin;
    while (true) {
      tag = source_.find('{', tag);
      if (tag == std::string::npos || tag + 1 >= source_.size()) {
        push(Token::Kind::data, source_.substr(begin));
        advance(source_.size() - begin);
        return {};
      }
      const char kind = source_[tag + 1];
      if (kind == '%' || kind == '{' || kind == '#') break;
      ++tag;
    }
    const char kind = source_[tag + 1];
    const char mark = tag + 2 < source_.size() ? source_[tag + 2] : '\0';
    const bool has_mark = mark == '-' || mark == '+';
    std::string data = source_.substr(begin, tag - begin);
    if (mark == '-') {
      strip_end(data);
    } else if (mark != '+' && kind != '{') {
      strip_line_start(data);
    }
    if (!data.empty()) push(Token::Kind::data, std::move(data));
    advance(tag - begin + 2 + (has_mark ? 1 : 0));
    line_start_ = false;
    if (kind == '#') return read_comment();
    if (kind == '%' && read_raw_begin()) return read_raw();
    push(kind == '%' ? Token::Kind::block_begin : Token::Kind::variable_begin, "");
    return read_code(kind == '%');
  }

  static void strip_end(std::string& data) {
    size_t end = data.size();
    while (end > 0) {
      size_t before = end;
      if (!is_python_space(previous_codepoint(data, before))) break;
      end = before;
    }
    data.resize(end);
  }

  // lstrip_blocks: white space alone between the start of the line and the tag goes.
  void strip_line_start(std::string& data) const {
    const size_t newline = data.rfind('\n');
    if (newline == std::string::npos && !line_start_) return;
    const size_t start = newline == std::string::npos ? 0 : newline + 1;
    for (size_t offset = start; offset < data.size();) {
      if (!is_python_space(next_codepoint(data, offset))) return;
    }
    data.resize(start);
  }

  // At the end of a block or comment tag, past its mark: trim_blocks drops one newline.
  void close_tag(char mark) {
    const size_t begin = at_;
    if (mark == '-') {
      skip_space();
    } else if (mark != '+' && peek() == '\n') {
      advance(1);
    }
    line_start_ = at_ > begin && source_[at_ - 1] == '\n';
  }

  Status read_comment() {
    const size_t end = source_.find("#}", at_);
    if (end == std::string::npos) return bad("\"{#\" without \"#}\"");
    const char mark = end > at_ ? source_[end - 1] : '\0';
    advance(end + 2 - at_);
    close_tag(mark);
    return {};
  }

  // Whether "raw %}" follows; then it is consumed.
  bool read_raw_begin() {
    size_t at = at_;
    const auto space = [&] {
      while (at < source_.size() && (source_[at] == ' ' || (source_[at] >= '\t' && source_[at] <= '\r')))
        ++at;
    };
    space();
    if (source_.compare(at, 3, "raw") != 0) return false;
    at += 3;
    space();
    const bool strip = source_.compare(at, 3, "-%}") == 0;
    if (!strip && source_.compare(at, 2, "%}") != 0) return false;
    advance(at + (strip ? 3 : 2) - at_);
    if (strip) skip_space();
    return true;
  }

  Status read_raw() {
    const size_t begin = at_;
    for (size_t tag = source_.find("{%", begin); tag != std::string::npos;
         tag = source_.find("{%", tag + 2)) {
      size_t at = tag + 2;
      const char mark = at < source_.size() ? source_[at] : '\0';
      if (mark == '-' || mark == '+') ++at;
      while (at < source_.size() && (source_[at] == ' ' || (source_[at] >= '\t' && source_[at] <= '\r')))
        ++at;
      if (source_.compare(at, 6, "endraw") != 0) continue;
      at += 6;
      while (at < source_.size() && (source_[at] == ' ' || (source_[at] >= '\t' && source_[at] <= '\r')))
        ++at;
      char close = '\0';
      if (at < source_.size() && (source_[at] == '-' || source_[at] == '+')) close = source_[at++];
      if (source_.compare(at, 2, "%}") != 0) continue;
      std::string data = source_.substr(begin, tag - begin);
      if (mark == '-') {
        strip_end(data);
      } else if (mark != '+') {
        strip_line_start(data);
      }
      if (!data.empty()) push(Token::Kind::data, std::move(data));
      advance(at + 2 - begin);
      close_tag(close);
      return {};
    }
    return bad("\"raw\" without \"endraw\"");
  }

  Status read_code(bool block) {
    const std::string_view close = block ? "%}" : "}}";
    int braces = 0;
    while (true) {
      skip_space();
      if (at_ >= source_.size()) return bad(block ? "\"{%\" without \"%}\"" : "\"{{\" without \"}}\"");
      const bool marked =
          (peek() == '-' || (block && peek() == '+')) && source_.compare(at_ + 1, 2, close) == 0;
      if (braces == 0 && (marked || looking_at(close))) {
        const char mark = marked ? peek() : '\0';
        push(block ? Token::Kind::block_end : Token::Kind::variable_end, "");
        advance(marked ? 3 : 2);
        if (block) {
          close_tag(mark);
        } else {
          const size_t begin = at_;
          if (mark == '-') skip_space();
          line_start_ = at_ > begin && source_[at_ - 1] == '\n';
        }
        return {};
      }
      TANDEM_TRY(read_token(braces));
    }
  }

  Status read_token(int& braces) {
    const char c = peek();
    if (is_name_start(c)) {
      size_t end = at_;
      while (end < source_.size() && (is_name_start(source_[end]) || is_digit(source_[end]))) ++end;
      push(Token::Kind::name, source_.substr(at_, end - at_));
      advance(end - at_);
      return {};
    }
    if (is_digit(c)) return read_number();
    if (c == '\'' || c == '"') return read_string(c);
    for (std::string_view op : {"**", "//", "==", "!=", ">=", "<="}) {
      if (looking_at(op)) {
        push(Token::Kind::op, std::string(op));
        advance(2);
        return {};
      }
    }
    if (std::string_view("+-*/%~[](){}=<>.:|,;").find(c) == std::string_view::npos) {
      size_t end = at_;
      next_codepoint(source_, end);
      return bad(
          fmt::format("the character \"{}\" is not supported in a tag", source_.substr(at_, end - at_)));
    }
    if (c == '{' || c == '[' || c == '(') ++braces;
    if ((c == '}' || c == ']' || c == ')') && braces > 0) --braces;
    push(Token::Kind::op, std::string(1, c));
    advance(1);
    return {};
  }

  Status read_number() {
    if (peek() == '0' && (peek(1) == 'x' || peek(1) == 'X' || peek(1) == 'b' || peek(1) == 'B' ||
                          peek(1) == 'o' || peek(1) == 'O')) {
      return bad("a number that is not decimal is not supported");
    }
    std::string digits;
    bool fraction = false;
    const auto read_digits = [&] {
      while (is_digit(peek()) || (peek() == '_' && is_digit(peek(1)))) {
        if (peek() != '_') digits += peek();
        advance(1);
      }
    };
    read_digits();
    if (peek() == '.' && is_digit(peek(1))) {
      fraction = true;
      digits += '.';
      advance(1);
      read_digits();
    }
    const size_t sign = peek(1) == '+' || peek(1) == '-' ? 1 : 0;
    if ((peek() == 'e' || peek() == 'E') && is_digit(peek(1 + sign))) {
      fraction = true;
      digits += source_.substr(at_, 1 + sign);
      advance(1 + sign);
      read_digits();
    }
    push(fraction ? Token::Kind::number : Token::Kind::integer, std::move(digits));
    return {};
  }

  Status read_string(char quote) {
    const int line = line_;
    advance(1);
    std::string text;
    while (true) {
      if (at_ >= source_.size())
        return bad(fmt::format("the string that begins on line {} has no end", line));
      const char c = peek();
      if (c == quote) break;
      if (c != '\\') {
        text += c;
        advance(1);
        continue;
      }
      advance(1);
      TANDEM_TRY(read_escape(text));
    }
    advance(1);
    tokens_.push_back({Token::Kind::string, std::move(text), line});
    return {};
  }

  // Behind the backslash; Python's escapes.
  Status read_escape(std::string& text) {
    const char c = peek();
    constexpr std::string_view kFrom = "abfnrtv\\'\"";
    constexpr std::string_view kTo = "\a\b\f\n\r\t\v\\'\"";
    if (const size_t simple = kFrom.find(c); c != '\0' && simple != std::string_view::npos) {
      text += kTo[simple];
      advance(1);
      return {};
    }
    if (c == '\n') {  // a line goes on
      advance(1);
      return {};
    }
    const size_t hex = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    uint32_t code = 0;
    if (hex > 0) {
      for (size_t i = 1; i <= hex; ++i) {
        const char digit = peek(i);
        const int value = is_digit(digit)                                  ? digit - '0'
                          : (digit | 0x20) >= 'a' && (digit | 0x20) <= 'f' ? (digit | 0x20) - 'a' + 10
                                                                           : -1;
        if (value < 0) return bad("a broken hexadecimal escape");
        code = code << 4 | static_cast<uint32_t>(value);
      }
      if (code > kMaxCodepoint || (code >= 0xD800 && code <= 0xDFFF))
        return bad("an escape that is no character");
      append_utf8(text, code);
      advance(1 + hex);
      return {};
    }
    if (c >= '0' && c <= '7') {
      for (int i = 0; i < 3 && peek() >= '0' && peek() <= '7'; ++i) {
        code = code * 8 + static_cast<uint32_t>(peek() - '0');
        advance(1);
      }
      append_utf8(text, code);
      return {};
    }
    if (c == 'N') return bad("the escape \"\\N\" is not supported");
    text += '\\';  // Python keeps an escape that it does not know
    return {};
  }

  std::string source_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_start_ = true;  // the tag or text before ended with a newline
  std::vector<Token> tokens_;
};

}  // namespace

Result<std::vector<Token>> tokenize(std::string_view source) {
  if (const size_t bad = find_invalid_utf8(source); bad != std::string_view::npos) {
    return make_error(ErrorCode::invalid_argument, fmt::format("chat template is not UTF-8 at byte {}", bad));
  }
  // One kind of newline, and none at the end.
  std::string text;
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      text += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      text += source[i];
    }
  }
  if (text.ends_with('\n')) text.pop_back();
  return Lexer(std::move(text)).run();
}

}  // namespace tandem::jinja
