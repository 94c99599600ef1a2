#include "grammar/gbnf.h"

#include <fmt/format.h>
#include <algorithm>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tokenizer/unicode.h"

namespace tandem {
namespace {

constexpr int kMaxNesting = 100;              // of parentheses: bounds the stack of this parser
constexpr uint32_t kMaxRepeat = 1 << 16;      // larger ones would exceed the network's states anyway
constexpr size_t kMaxGrammarBytes = 1 << 20;  // a grammar of a whole programming language has some 50 KB

bool is_name_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

class GbnfParser {
 public:
  explicit GbnfParser(std::string_view text) : text_(text) {}

  Result<GrammarRules> parse() {
    rule_number("root");
    skip_space(true);
    while (!at_end()) {
      TANDEM_TRY(parse_rule());
      skip_space(true);
    }
    for (size_t i = 0; i < defined_.size(); ++i) {
      if (!defined_[i]) {
        return make_error(ErrorCode::invalid_argument,
                          fmt::format("grammar: the rule \"{}\" is not there; add `{} ::= ...`",
                                      rules_.rules[i].name, rules_.rules[i].name));
      }
    }
    return std::move(rules_);
  }

 private:
  bool at_end() const { return offset_ >= text_.size(); }
  char peek() const { return at_end() ? '\0' : text_[offset_]; }
  bool accept(std::string_view what) {
    if (!text_.substr(offset_).starts_with(what)) return false;
    offset_ += what.size();
    return true;
  }

  std::unexpected<Error> bad(std::string_view what) const {
    const std::string_view before = text_.substr(0, offset_);
    const auto line = std::ranges::count(before, '\n') + 1;
    const size_t line_begin = before.rfind('\n') + 1;  // npos + 1 == 0
    return make_error(ErrorCode::invalid_argument, fmt::format("grammar: {} at line {}, column {}", what,
                                                               line, before.size() - line_begin + 1));
  }

  void skip_space(bool lines) {
    while (!at_end()) {
      const char c = peek();
      if (c == '#') {
        while (!at_end() && peek() != '\n') ++offset_;
      } else if (c == ' ' || c == '\t' || (lines && (c == '\n' || c == '\r'))) {
        ++offset_;
      } else {
        return;
      }
    }
  }

  uint32_t rule_number(std::string_view name) {
    const auto [at, is_new] =
        numbers_.try_emplace(std::string(name), static_cast<uint32_t>(rules_.rules.size()));
    if (is_new) {
      rules_.add(std::string(name));
      defined_.push_back(false);
    }
    return at->second;
  }

  std::string_view parse_name() {
    const size_t begin = offset_;
    while (!at_end() && is_name_character(peek())) ++offset_;
    return text_.substr(begin, offset_ - begin);
  }

  Status parse_rule() {
    const size_t begin = offset_;
    const std::string_view name = parse_name();
    if (name.empty()) return bad("a rule's name is missing");
    const uint32_t number = rule_number(name);
    if (defined_[number]) {
      offset_ = begin;
      return bad(fmt::format("a second rule \"{}\"", name));
    }
    skip_space(false);
    if (!accept("::=")) return bad("\"::=\" is missing");
    skip_space(true);
    TANDEM_ASSIGN(GrammarExpression expression, parse_choice(0));
    rules_.rules[number].expression = std::move(expression);
    defined_[number] = true;
    if (!at_end() && peek() != '\n' && peek() != '\r') return bad(fmt::format("a stray \"{}\"", peek()));
    return {};
  }

  Result<GrammarExpression> parse_choice(int depth) {
    if (depth > kMaxNesting) return bad("nesting deeper than 100");
    std::vector<GrammarExpression> options;
    while (true) {
      TANDEM_ASSIGN(GrammarExpression sequence, parse_sequence(depth));
      options.push_back(std::move(sequence));
      const size_t end = offset_;
      skip_space(true);
      if (!accept("|")) {
        if (depth == 0) offset_ = end;  // the rule ends with its line
        break;
      }
      skip_space(true);
    }
    if (options.size() == 1) return std::move(options[0]);
    return GrammarExpression::choice(std::move(options));
  }

  Result<GrammarExpression> parse_sequence(int depth) {
    std::vector<GrammarExpression> parts;
    while (true) {
      skip_space(depth > 0);
      const char c = peek();
      GrammarExpression part;
      if (c == '"') {
        TANDEM_ASSIGN(part, parse_text());
      } else if (c == '[') {
        TANDEM_ASSIGN(part, parse_class());
      } else if (c == '.') {
        ++offset_;
        part = GrammarExpression::range(0, kMaxCodepoint);
      } else if (c == '(') {
        ++offset_;
        skip_space(true);
        TANDEM_ASSIGN(part, parse_choice(depth + 1));
        skip_space(true);
        if (!accept(")")) return bad("missing \")\"");
      } else if (is_name_character(c)) {
        part = GrammarExpression::call(rule_number(parse_name()));
      } else {
        break;
      }
      TANDEM_ASSIGN(part, parse_repeat(std::move(part)));
      parts.push_back(std::move(part));
    }
    if (parts.size() == 1) return std::move(parts[0]);
    return GrammarExpression::sequence(std::move(parts));
  }

  Result<GrammarExpression> parse_repeat(GrammarExpression part) {
    uint32_t min = 0, max = GrammarExpression::kUnbounded;
    if (accept("+")) {
      min = 1;
    } else if (accept("?")) {
      max = 1;
    } else if (accept("{")) {
      TANDEM_ASSIGN(min, parse_number());
      max = min;
      if (accept(",")) {
        max = GrammarExpression::kUnbounded;
        if (peek() != '}') {
          TANDEM_ASSIGN(max, parse_number());
        }
      }
      if (!accept("}")) return bad("a broken {n,m}");
      if (max < min) return bad("{n,m} with n above m");
    } else if (!accept("*")) {
      return part;
    }
    if (std::string_view("*+?{").find(peek()) != std::string_view::npos && !at_end())
      return bad("a repetition of a repetition; put the first into ( )");
    return GrammarExpression::repeat(std::move(part), min, max);
  }

  Result<uint32_t> parse_number() {
    if (peek() < '0' || peek() > '9') return bad("a number is missing");
    uint32_t value = 0;
    while (peek() >= '0' && peek() <= '9') {
      value = value * 10 + static_cast<uint32_t>(text_[offset_++] - '0');
      if (value > kMaxRepeat) return bad(fmt::format("a repetition above {}", kMaxRepeat));
    }
    return value;
  }

  Result<char32_t> parse_hex(int digits) {
    char32_t value = 0;
    for (int i = 0; i < digits; ++i) {
      const char c = peek();
      const bool is_digit = c >= '0' && c <= '9';
      if (!is_digit && !((c | 0x20) >= 'a' && (c | 0x20) <= 'f')) return bad("a broken hexadecimal escape");
      value = value * 16 + static_cast<char32_t>(is_digit ? c - '0' : (c | 0x20) - 'a' + 10);
      ++offset_;
    }
    if (value > kMaxCodepoint) return bad("a code point out of range");
    return value;
  }

  // One character of a text or a class.
  Result<char32_t> parse_character() {
    if (!accept("\\")) return next_codepoint(text_, offset_);
    if (at_end()) return bad("a lone \"\\\"");
    const char c = text_[offset_++];
    switch (c) {
      case 'n':
        return U'\n';
      case 'r':
        return U'\r';
      case 't':
        return U'\t';
      case 'x':
        return parse_hex(2);
      case 'u':
        return parse_hex(4);
      case 'U':
        return parse_hex(8);
      case '\\':
      case '"':
      case '[':
      case ']':
      case '-':
      case '^':
      case '/':
        return static_cast<char32_t>(c);
      default:
        return bad(fmt::format("the unknown escape \"\\{}\"", c));
    }
  }

  Result<GrammarExpression> parse_text() {
    ++offset_;
    std::vector<char32_t> characters;
    while (!accept("\"")) {
      if (at_end() || peek() == '\n') return bad("a text without its closing quote");
      TANDEM_ASSIGN(const char32_t c, parse_character());
      characters.push_back(c);
    }
    std::string bytes;
    for (const char32_t c : characters) append_utf8(bytes, c);
    return GrammarExpression::literal(bytes);
  }

  Result<GrammarExpression> parse_class() {
    ++offset_;
    const bool negated = accept("^");
    CodepointSet set;
    while (!accept("]")) {
      if (at_end() || peek() == '\n') return bad("\"[\" without \"]\"");
      TANDEM_ASSIGN(const char32_t first, parse_character());
      char32_t last = first;
      if (peek() == '-' && !text_.substr(offset_).starts_with("-]")) {
        ++offset_;
        TANDEM_ASSIGN(last, parse_character());
        if (last < first) return bad("a range that runs backwards");
      }
      set.add(first, last);
    }
    if (negated) set.negate();
    if (set.empty()) return bad("a class of no character");
    return GrammarExpression::one_of(std::move(set));
  }

  std::string_view text_;
  size_t offset_ = 0;
  GrammarRules rules_;
  std::vector<bool> defined_;
  std::unordered_map<std::string, uint32_t> numbers_;
};

}  // namespace

Result<GrammarRules> parse_gbnf(std::string_view text) {
  if (text.size() > kMaxGrammarBytes || find_invalid_utf8(text) != std::string_view::npos) {
    return make_error(ErrorCode::invalid_argument,
                      fmt::format("a grammar must be UTF-8 of at most {} bytes", kMaxGrammarBytes));
  }
  return GbnfParser(text).parse();
}

}  // namespace tandem
