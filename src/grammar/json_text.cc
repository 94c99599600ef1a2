#include "grammar/json_text.h"

#include <fmt/format.h>
#include <algorithm>
#include <string>
#include <utility>

#include "tokenizer/unicode.h"

namespace tandem {
namespace {

using E = GrammarExpression;

// Deeper than any model indents; what matters is that it ends.
constexpr uint32_t kMaxIndentation = 40;
// Digits behind the first: as many as a 64-bit integer has, and as a float64 needs.
constexpr uint32_t kMaxIntegerDigits = 18, kMaxFractionDigits = 17;

E digits(uint32_t min, uint32_t max) {
  return E::repeat(E::range('0', '9'), min, max);
}

CodepointSet set_of(std::string_view characters) {
  CodepointSet set;
  for (const char c : characters) set.add(static_cast<unsigned char>(c));
  return set;
}

// \u and four digits; of half a character beyond U+FFFF only with the other half, or parsers refuse it.
E unicode_escape() {
  const E digit = E::one_of(set_of("0123456789abcdefABCDEF"));
  const auto escape = [&](std::string_view first, std::string_view second) {
    return E::sequence(
        {E::literal("\\u"), E::one_of(set_of(first)), E::one_of(set_of(second)), E::repeat(digit, 2, 2)});
  };
  E pair = E::sequence({escape("dD", "89abAB"), escape("dD", "cdefCDEF")});
  return E::choice(
      {escape("0123456789abcefABCEF", "0123456789abcdefABCDEF"), escape("dD", "01234567"), std::move(pair)});
}

// What stands in a string as it is.
CodepointSet plain_characters() {
  CodepointSet set;
  set.add(0x20, '"' - 1);
  set.add('"' + 1, '\\' - 1);
  set.add('\\' + 1, kMaxCodepoint);
  return set;
}

E short_escape() {
  return E::sequence({E::literal("\\"), E::one_of(set_of("\"\\/bfnrt"))});
}

// How JSON writes a character that must be escaped.
std::string escape_of(char32_t c) {
  switch (c) {
    case '"':
      return "\\\"";
    case '\\':
      return "\\\\";
    case '\b':
      return "\\b";
    case '\f':
      return "\\f";
    case '\n':
      return "\\n";
    case '\r':
      return "\\r";
    case '\t':
      return "\\t";
    default:
      return fmt::format("\\u{:04x}", static_cast<uint32_t>(c));
  }
}

// The rest of a string, quote included, that is none of `texts`; all of them begin with the same `depth`
// characters, which were read. `texts` is sorted and not empty.
E rest_except(const std::vector<std::u32string>& texts, size_t depth, const E& character) {
  const E anything = E::sequence({E::repeat(character, 0), E::literal("\"")});
  std::vector<E> options;
  CodepointSet other = plain_characters(), taken;
  size_t i = 0;
  if (texts[0].size() == depth) {
    ++i;
  } else {
    options.push_back(E::literal("\""));
  }
  while (i < texts.size()) {
    const char32_t c = texts[i][depth];
    std::vector<std::u32string> below;
    for (; i < texts.size() && texts[i][depth] == c; ++i) below.push_back(texts[i]);
    taken.add(c);
    E here = escaped_for_json(E::range(c, c));
    options.push_back(E::sequence({std::move(here), rest_except(below, depth + 1, character)}));
  }
  if (!taken.empty()) {
    taken.negate();
    other.intersect(taken);
  }
  options.push_back(E::sequence({E::one_of(std::move(other)), anything}));
  return E::choice(std::move(options));
}

}  // namespace

E JsonText::space() {
  return shared(space_, "space", [] {
    E indentation = E::repeat(E::one_of(set_of(" \t")), 0, kMaxIndentation);
    return E::optional(E::choice({E::literal(" "), E::sequence({E::literal("\n"), std::move(indentation)})}));
  });
}

E JsonText::character() {
  return shared(character_, "character", [] {
    return E::choice({E::one_of(plain_characters()), short_escape(), unicode_escape()});
  });
}

E JsonText::string() {
  return shared(string_, "string", [this] {
    return E::sequence({E::literal("\""), E::repeat(character(), 0), E::literal("\"")});
  });
}

E JsonText::integer() {
  return shared(integer_, "integer", [] {
    E positive = E::sequence({E::range('1', '9'), digits(0, kMaxIntegerDigits)});
    return E::sequence({E::optional(E::literal("-")), E::choice({E::literal("0"), std::move(positive)})});
  });
}

E JsonText::number() {
  return shared(number_, "number", [this] {
    E fraction = E::sequence({E::literal("."), digits(1, kMaxFractionDigits)});
    // Up to 289: with nineteen digits before it a number is still a float64, where parsers refuse infinity.
    E power = E::choice({digits(1, 2), E::sequence({E::literal("1"), digits(2, 2)}),
                         E::sequence({E::literal("2"), E::range('0', '8'), digits(1, 1)})});
    E exponent =
        E::sequence({E::one_of(set_of("eE")), E::optional(E::one_of(set_of("+-"))), std::move(power)});
    return E::sequence({integer(), E::optional(std::move(fraction)), E::optional(std::move(exponent))});
  });
}

E JsonText::boolean() {
  return E::choice({E::literal("true"), E::literal("false")});
}

E JsonText::value() {
  return shared(value_, "value", [this] {
    return E::choice({object(), array(), string(), number(), boolean(), null()});
  });
}

E JsonText::array() {
  return shared(array_, "array", [this] { return list("[", value(), 0, E::kUnbounded, "]"); });
}

E JsonText::object() {
  return shared(object_, "object",
                [this] { return list("{", member(string(), value()), 0, E::kUnbounded, "}"); });
}

E JsonText::member(E name, E value) {
  return E::sequence({std::move(name), E::literal(":"), space(), std::move(value)});
}

E JsonText::list(std::string_view open, E element, uint32_t min, uint32_t max, std::string_view close) {
  if (max == 0) return E::sequence({E::literal(open), space(), E::literal(close)});
  E more = E::sequence({E::literal(","), space(), element});
  const uint32_t min_more = min > 0 ? min - 1 : 0;
  const uint32_t max_more = max == E::kUnbounded ? max : max - 1;
  E elements = E::sequence({space(), std::move(element), E::repeat(std::move(more), min_more, max_more)});
  if (min == 0) elements = E::optional(std::move(elements));
  return E::sequence({E::literal(open), std::move(elements), space(), E::literal(close)});
}

E JsonText::string_except(std::vector<std::string> texts) {
  if (texts.empty()) return string();
  std::vector<std::u32string> decoded;
  for (const std::string& text : texts) {
    std::u32string characters;
    for (size_t offset = 0; offset < text.size();) characters += next_codepoint(text, offset);
    decoded.push_back(std::move(characters));
  }
  std::ranges::sort(decoded);
  decoded.erase(std::ranges::unique(decoded).begin(), decoded.end());
  return E::sequence({E::literal("\""), rest_except(decoded, 0, character())});
}

E escaped_for_json(const E& expression) {
  E out = expression;
  if (expression.kind == E::Kind::set) {
    CodepointSet plain = expression.set;
    plain.intersect(plain_characters());
    std::vector<E> options;
    if (!plain.empty()) options.push_back(E::one_of(std::move(plain)));
    for (const CodepointSet::Range& range : expression.set.ranges()) {
      for (char32_t c = range.first; c <= std::min<char32_t>(range.last, '\\'); ++c) {
        if (c < 0x20 || c == '"' || c == '\\') options.push_back(E::literal(escape_of(c)));
      }
    }
    return options.size() == 1 ? std::move(options[0]) : E::choice(std::move(options));
  }
  if (expression.kind == E::Kind::bytes) {
    out.bytes.clear();
    for (const char c : expression.bytes) {
      const auto byte = static_cast<unsigned char>(c);
      if (byte < 0x20 || c == '"' || c == '\\') {
        out.bytes += escape_of(byte);
      } else {
        out.bytes += c;
      }
    }
  }
  for (E& child : out.children) child = escaped_for_json(child);
  return out;
}

}  // namespace tandem
