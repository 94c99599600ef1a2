// Pattern text to tree. Nesting, counts and length are limited, so that a hostile
// pattern can neither exhaust the stack nor the memory.
#include <fmt/format.h>
#include <cstdlib>
#include <optional>

#include "tokenizer/regex.h"
#include "tokenizer/regex_tree.h"
#include "tokenizer/unicode.h"

namespace tandem {
namespace {

using Kind = RegexNode::Kind;

constexpr int kMaxNesting = 50;             // real patterns nest 2 deep
constexpr uint32_t kMaxRepeat = 1000;       // bounds the frames that one bounded repetition pushes
constexpr size_t kMaxPatternBytes = 65536;  // the longest real pattern has some 1,000 bytes

bool is_ascii_letter(char32_t c) {
  return (c | 0x20) >= 'a' && (c | 0x20) <= 'z' && c < 0x80;
}

// An escape is one character or a set of them.
struct Escape {
  bool is_set = false;
  char32_t codepoint = 0;
  CodepointSet set;
};

class Parser {
 public:
  Parser(std::string_view pattern, RegexDialect dialect)
      : pattern_(pattern), is_text_(dialect == RegexDialect::text) {}

  Result<RegexNode> parse() {
    TANDEM_ASSIGN(RegexNode root, parse_choice(false, 0));
    if (!at_end()) return bad("\")\" without \"(\"");
    return root;
  }

 private:
  bool at_end() const { return offset_ >= pattern_.size(); }
  char peek() const { return at_end() ? '\0' : pattern_[offset_]; }
  bool looking_at(std::string_view text) const { return pattern_.substr(offset_).starts_with(text); }
  bool accept(std::string_view text) {
    if (!looking_at(text)) return false;
    offset_ += text.size();
    return true;
  }
  std::unexpected<Error> bad(std::string_view what) const {
    return make_error(ErrorCode::invalid_argument,
                      fmt::format("pattern \"{}\": {} at byte {}", pattern_, what, offset_));
  }
  std::unexpected<Error> refuse(std::string_view what) const {
    return make_error(
        ErrorCode::unsupported,
        fmt::format("pattern \"{}\": {} at byte {} is not supported; {}", pattern_, what, offset_,
                    is_text_ ? "write it with classes, groups, | and repetitions"
                             : "use one of the pre-tokenizers of DeepSeek, Qwen, Llama 3 or GPT-2"));
  }

  Result<RegexNode> parse_choice(bool fold_case, int depth) {
    if (depth > kMaxNesting) return refuse("nesting deeper than 50");
    RegexNode choice{.kind = Kind::choice};
    do {
      TANDEM_ASSIGN(RegexNode sequence, parse_sequence(fold_case, depth));
      choice.children.push_back(std::move(sequence));
    } while (accept("|"));
    if (choice.children.size() == 1) return std::move(choice.children[0]);
    return choice;
  }

  Result<RegexNode> parse_sequence(bool fold_case, int depth) {
    RegexNode sequence{.kind = Kind::sequence};
    char32_t previous = 0;
    while (!at_end() && peek() != '|' && peek() != ')') {
      const size_t start = offset_;
      TANDEM_ASSIGN(RegexNode atom, parse_atom(fold_case, depth));
      if (fold_case) {
        // Oniguruma folds these pairs into one character (U+FB00 and the like), a match of another length.
        const char32_t letter =
            offset_ - start == 1 && is_ascii_letter(pattern_[start]) ? pattern_[start] | 0x20 : 0;
        const bool ligature = (previous == 'f' && (letter == 'f' || letter == 'i' || letter == 'l')) ||
                              (previous == 's' && (letter == 's' || letter == 't'));
        if (ligature) return refuse("a case-insensitive ff, fi, fl, ss or st");
        previous = letter;
      }
      TANDEM_ASSIGN(RegexNode repeated, parse_repeat(std::move(atom)));
      sequence.children.push_back(std::move(repeated));
    }
    return sequence;
  }

  Result<RegexNode> parse_atom(bool fold_case, int depth) {
    if (looking_at("(")) return parse_group(fold_case, depth);
    if (accept("[")) {
      TANDEM_ASSIGN(CodepointSet set, parse_class(fold_case, depth + 1));
      return RegexNode{.kind = Kind::set, .set = std::move(set)};
    }
    if (accept("$")) return RegexNode{.kind = Kind::end};
    if (is_text_ && accept("^")) return RegexNode{.kind = Kind::begin};
    if (peek() == '^') return refuse("the anchor \"^\"");
    if (peek() == '?' || peek() == '*' || peek() == '+') return bad("a repetition of nothing");
    if (peek() == '{') return refuse("a \"{\" that is not escaped");
    RegexNode node{.kind = Kind::set};
    if (accept(".")) {
      node.set.add(U'\n');
      node.set.negate();
      return node;
    }
    if (peek() == '\\') {
      TANDEM_ASSIGN(Escape escape, parse_escape(fold_case));
      if (escape.is_set) {
        node.set = std::move(escape.set);
        return node;
      }
      node.set.add(escape.codepoint);
    } else {
      node.set.add(next_codepoint(pattern_, offset_));
    }
    if (fold_case) {
      if (!node.set.only_ascii()) return refuse("a case-insensitive character that is not ASCII");
      node.set.fold_ascii_case();
    }
    return node;
  }

  Result<RegexNode> parse_group(bool fold_case, int depth) {
    RegexNode look{.kind = Kind::look};
    if (accept("(?=")) {
    } else if (accept("(?!")) {
      look.negated = true;
    } else {
      if (accept("(?i:")) {
        fold_case = true;
      } else if (!accept("(?:")) {
        if (looking_at("(?<=") || looking_at("(?<!")) return refuse("lookbehind");
        if (is_text_ && (looking_at("(?<") || looking_at("(?P<"))) {
          offset_ = pattern_.find('>', offset_);
          if (offset_ == std::string_view::npos) {
            offset_ = pattern_.size();
            return bad("a group name without \">\"");
          }
          ++offset_;
          return parse_rest_of_group(fold_case, depth);
        }
        if (looking_at("(?")) return refuse(fmt::format("the group \"{}\"", pattern_.substr(offset_, 3)));
        accept("(");  // a capture that nobody reads
      }
      return parse_rest_of_group(fold_case, depth);
    }
    TANDEM_ASSIGN(RegexNode inner, parse_rest_of_group(fold_case, depth));
    look.children.push_back(std::move(inner));
    return look;
  }

  Result<RegexNode> parse_rest_of_group(bool fold_case, int depth) {
    TANDEM_ASSIGN(RegexNode inner, parse_choice(fold_case, depth + 1));
    if (!accept(")")) return bad("missing \")\"");
    return inner;
  }

  std::optional<uint32_t> parse_number() {
    if (peek() < '0' || peek() > '9') return std::nullopt;
    uint32_t value = 0;
    while (peek() >= '0' && peek() <= '9')
      value = std::min<uint32_t>(kMaxRepeat + 1, value * 10 + (pattern_[offset_++] - '0'));
    return value;
  }

  Result<RegexNode> parse_repeat(RegexNode atom) {
    RegexNode repeat{.kind = Kind::repeat};
    bool interval = false;
    if (accept("?")) {
      repeat.min = 0;
    } else if (accept("*")) {
      repeat.min = 0;
      repeat.max = Regex::kUnbounded;
    } else if (accept("+")) {
      repeat.max = Regex::kUnbounded;
    } else if (accept("{")) {
      interval = true;
      const auto low = parse_number();
      repeat.min = low.value_or(0);
      repeat.max = repeat.min;
      if (accept(",")) repeat.max = parse_number().value_or(Regex::kUnbounded);
      if (!accept("}") || (!low && repeat.max == Regex::kUnbounded)) return bad("a broken {n,m}");
      if (repeat.max < repeat.min) return bad("{n,m} with n above m");
      if (repeat.min > kMaxRepeat || (repeat.max > kMaxRepeat && repeat.max != Regex::kUnbounded)) {
        return refuse("a repetition above 1000");
      }
    } else {
      return atom;
    }
    if (atom.kind == Kind::look || atom.kind == Kind::begin || atom.kind == Kind::end)
      return refuse("a repeated lookahead or anchor");
    if (!(is_text_ && accept("?")) && peek() == '?') return refuse("lazy repetition");
    if (peek() == '*' || (interval && peek() == '+')) return refuse("a repetition of a repetition");
    if (is_text_ && peek() == '+') return refuse("possessive repetition");
    if (accept("+")) {
      if (atom.kind != Kind::set) return refuse("possessive repetition of a group");
      repeat.possessive = true;
      if (peek() == '?' || peek() == '*' || peek() == '+') return refuse("a repetition of a repetition");
    }
    repeat.children.push_back(std::move(atom));
    return repeat;
  }

  Result<char32_t> parse_hex(size_t digits) {
    const bool braces = accept("{");
    if (braces) digits = 8;
    uint64_t value = 0;
    size_t count = 0;
    while (count < digits && !at_end() && std::isxdigit(static_cast<unsigned char>(peek())) != 0) {
      const char c = pattern_[offset_++];
      value = value * 16 + static_cast<uint64_t>(c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10);
      ++count;
    }
    if (count == 0 || (braces ? !accept("}") : count != digits)) return bad("a broken hexadecimal escape");
    if (value > kMaxCodepoint || (!braces && digits == 2 && value > 0x7F))
      return bad("a code point out of range");
    return static_cast<char32_t>(value);
  }

  Result<Escape> parse_escape(bool fold_case) {
    const size_t start = offset_;
    ++offset_;
    if (at_end()) return bad("a lone \"\\\"");
    const char32_t c = next_codepoint(pattern_, offset_);
    Escape escape;
    switch (c) {
      case 'r':
        escape.codepoint = '\r';
        return escape;
      case 'n':
        escape.codepoint = '\n';
        return escape;
      case 't':
        escape.codepoint = '\t';
        return escape;
      case 'f':
        escape.codepoint = '\f';
        return escape;
      case 'v':
        escape.codepoint = '\v';
        return escape;
      case 'x':
      case 'u': {
        TANDEM_ASSIGN(escape.codepoint, parse_hex(c == 'x' ? 2 : 4));
        return escape;
      }
      case 's':
      case 'S':
        if (is_text_) {
          escape.set.add('\t', '\r');
          escape.set.add(' ');
        } else {
          escape.set.add_white_space();
        }
        break;
      case 'd':
      case 'D':
        if (is_text_) {
          escape.set.add('0', '9');
        } else {
          escape.set.add_property("Nd");
        }
        break;
      case 'w':
      case 'W':
        if (!is_text_) {
          offset_ = start;
          return refuse(fmt::format("the escape \"\\{}\"", static_cast<char>(c)));
        }
        escape.set.add('0', '9');
        escape.set.add('A', 'Z');
        escape.set.add('_');
        escape.set.add('a', 'z');
        break;
      case 'p':
      case 'P': {
        // Folding a property would have to add the other case of each of its letters.
        if (fold_case) return refuse("a case-insensitive property");
        if (!accept("{")) return refuse("a property without braces");
        const bool caret = accept("^");
        const size_t close = pattern_.find('}', offset_);
        if (close == std::string_view::npos) return bad("\\p{ without }");
        const std::string_view name = pattern_.substr(offset_, close - offset_);
        if (!escape.set.add_property(name)) return refuse(fmt::format("the property \"{}\"", name));
        offset_ = close + 1;
        if (caret) escape.set.negate();
        break;
      }
      default:
        if (is_ascii_letter(c) || (c >= '0' && c <= '9')) {
          offset_ = start;
          return refuse(fmt::format("the escape \"\\{}\"", static_cast<char>(c)));
        }
        escape.codepoint = c;
        return escape;
    }
    escape.is_set = true;
    if (c == 'S' || c == 'D' || c == 'P' || c == 'W') escape.set.negate();
    return escape;
  }

  // Behind "[": up to and with the closing "]".
  Result<CodepointSet> parse_class(bool fold_case, int depth) {
    if (depth > kMaxNesting) return refuse("nesting deeper than 50");
    const bool negated = accept("^");
    if (negated && fold_case) return refuse("a case-insensitive negated class");
    CodepointSet result;  // what the parts before "&&" have in common
    CodepointSet current;
    bool has_result = false;
    bool empty = true;
    const auto close_part = [&] {
      if (has_result) {
        current.intersect(result);
      }
      result = std::move(current);
      current = CodepointSet();
      has_result = true;
    };
    while (true) {
      if (at_end()) return bad("\"[\" without \"]\"");
      if (accept("]")) {
        if (empty) return refuse("an empty class");
        break;
      }
      if (!is_text_ && accept("&&")) {
        close_part();
        continue;
      }
      empty = false;
      if (!is_text_ && looking_at("[:")) return refuse("a POSIX class");
      if (!is_text_ && accept("[")) {
        TANDEM_ASSIGN(CodepointSet inner, parse_class(fold_case, depth + 1));
        current.add(inner);
        continue;
      }
      TANDEM_ASSIGN(Escape first, parse_class_item(fold_case));
      if (first.is_set) {
        current.add(first.set);
        continue;
      }
      char32_t last = first.codepoint;
      if (looking_at("-") && !looking_at("-]")) {
        ++offset_;
        if (!is_text_ && (looking_at("[") || looking_at("&&"))) return refuse("\"-\" before a class");
        TANDEM_ASSIGN(Escape second, parse_class_item(fold_case));
        if (second.is_set) return refuse("a range that ends in a class");
        last = second.codepoint;
        if (last < first.codepoint) return bad("a range that runs backwards");
      }
      if (fold_case && last >= 0x80) return refuse("a case-insensitive character that is not ASCII");
      current.add(first.codepoint, last);
    }
    close_part();
    if (fold_case) result.fold_ascii_case();
    if (negated) result.negate();
    return result;
  }

  Result<Escape> parse_class_item(bool fold_case) {
    if (at_end()) return bad("\"[\" without \"]\"");
    if (peek() == '\\') return parse_escape(fold_case);
    Escape item;
    item.codepoint = next_codepoint(pattern_, offset_);
    return item;
  }

  std::string_view pattern_;
  const bool is_text_;
  size_t offset_ = 0;
};

}  // namespace

Result<RegexNode> parse_regex(std::string_view pattern, RegexDialect dialect) {
  if (pattern.size() > kMaxPatternBytes || find_invalid_utf8(pattern) != std::string_view::npos) {
    return make_error(ErrorCode::invalid_argument, "a pattern must be UTF-8 of at most 65536 bytes");
  }
  return Parser(pattern, dialect).parse();
}

}  // namespace tandem
