#include "grammar/grammar_network.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "grammar/grammar_testing.h"
#include "grammar/utf8_ranges.h"
#include "tokenizer/unicode.h"

namespace tandem {
namespace {

using E = GrammarExpression;

GrammarRules rule_of(E expression) {
  GrammarRules rules;
  rules.add("root", std::move(expression));
  return rules;
}

TEST(Utf8Ranges, AreTheEncodingsOfTheirCodePointsAndNothingElse) {
  struct Case {
    char32_t first, last;
  };
  for (const Case& range :
       {Case{0, kMaxCodepoint}, Case{0x22, 0x7F}, Case{0x7F, 0x80}, Case{0x3A9, 0x4E01}, Case{0xD700, 0xE001},
        Case{0xFFFF, 0x10000}, Case{0x1F600, 0x1F64F}, Case{0x10FFFF, 0x10FFFF}}) {
    std::vector<Utf8Range> found;
    visit_utf8_ranges(range.first, range.last, [&](const Utf8Range& bytes) { found.push_back(bytes); });
    const auto matches = [&](char32_t c) {
      std::string text;
      append_utf8(text, c);
      return std::ranges::count_if(found, [&](const Utf8Range& bytes) {
        if (bytes.count != text.size()) return false;
        for (uint32_t i = 0; i < bytes.count; ++i) {
          const auto byte = static_cast<uint8_t>(text[i]);
          if (byte < bytes.first[i] || byte > bytes.last[i]) return false;
        }
        return true;
      });
    };
    for (char32_t c = 0; c <= kMaxCodepoint; c += c < 0x3000 || (c > 0xD600 && c < 0xE100) ? 1 : 61) {
      if (c >= 0xD800 && c <= 0xDFFF) continue;
      ASSERT_EQ(matches(c), c >= range.first && c <= range.last ? 1 : 0)
          << std::hex << static_cast<uint32_t>(c);
    }
    for (const Utf8Range& bytes : found) {  // no surrogate, whatever the range
      EXPECT_FALSE(bytes.count == 3 && bytes.first[0] <= 0xED && bytes.last[0] >= 0xED &&
                   bytes.last[1] >= 0xA0);
    }
  }
}

TEST(GrammarNetwork, RepetitionsTakeTheirBounds) {
  const GrammarRules rules = rule_of(E::repeat(E::literal("ab"), 2, 4));
  EXPECT_EQ(read_text(rules, "ab"), Read::begun);
  EXPECT_EQ(read_text(rules, "abab"), Read::whole);
  EXPECT_EQ(read_text(rules, "abababab"), Read::whole);
  EXPECT_EQ(read_text(rules, "ababababa"), Read::no);
  EXPECT_EQ(read_text(rule_of(E::repeat(E::literal("x"), 0, 0)), ""), Read::whole);
  EXPECT_EQ(read_text(rule_of(E::repeat(E::optional(E::literal("x")), 3, E::kUnbounded)), ""), Read::whole);
}

TEST(GrammarNetwork, AChoiceOfNothingMatchesNothing) {
  EXPECT_EQ(read_text(rule_of(E::sequence({E::literal("a"), E::choice({})})), "a"), Read::no);
}

TEST(GrammarNetwork, RulesCallThemselves) {
  GrammarRules rules;  // balanced parentheses
  rules.add("root");
  rules.rules[0].expression = E::repeat(E::sequence({E::literal("("), E::call(0), E::literal(")")}), 0);
  EXPECT_EQ(read_text(rules, ""), Read::whole);
  EXPECT_EQ(read_text(rules, "(()())()"), Read::whole);
  EXPECT_EQ(read_text(rules, "(()"), Read::begun);
  EXPECT_EQ(read_text(rules, "())"), Read::no);
}

TEST(GrammarNetwork, LeftRecursionIsNamed) {
  GrammarRules rules;
  rules.add("root", E::call(1));
  rules.add("list", E::sequence({E::call(2), E::call(3)}));
  rules.add("nothing", E::optional(E::literal("-")));
  rules.add("tail", E::choice({E::call(1), E::literal("x")}));
  const auto network = GrammarNetwork::build(rules);
  ASSERT_FALSE(network.has_value());
  EXPECT_NE(network.error().message.find("rule \"list\" calls itself before"), std::string::npos)
      << network.error().message;
  rules.rules[2].expression = E::literal("-");  // now something is consumed
  EXPECT_TRUE(GrammarNetwork::build(rules).has_value());
}

TEST(GrammarNetwork, WhatIsSmallToWriteAndLargeToComputeIsRefused) {
  // Each of 250,000 states would reach all behind it.
  E many = E::repeat(E::repeat(E::optional(E::literal("a")), 0, 1000), 0, 60);
  const auto edges = GrammarNetwork::build(rule_of(std::move(many)));
  ASSERT_FALSE(edges.has_value());
  EXPECT_NE(edges.error().message.find("more than 4194304 edges"), std::string::npos)
      << edges.error().message;
  // A chain of rules that may all be empty.
  GrammarRules rules;
  for (uint32_t i = 0; i < 20000; ++i) rules.add("r", E::optional(E::call(i + 1)));
  rules.add("end", E::literal("x"));
  EXPECT_TRUE(GrammarNetwork::build(rules).has_value());
}

TEST(GrammarStacks, ReadingsAndDepthAreBounded) {
  // Each "a" may end with a "b" or a "c" of its own: 2^n ways to read n of them.
  GrammarRules rules;
  rules.add("root");
  rules.rules[0].expression =
      E::choice({E::sequence({E::literal("a"), E::call(0), E::literal("b")}),
                 E::sequence({E::literal("a"), E::call(0), E::literal("c")}), E::literal("a")});
  GrammarStacks stacks(*GrammarNetwork::build(rules));
  GrammarStacks::Position position = stacks.start();
  for (int i = 0; i < 60; ++i) {
    position = stacks.step(position, 'a');
    EXPECT_LE(stacks.frames(position).size(), GrammarStacks::kMaxFrames * 2);
  }
  EXPECT_NE(position, GrammarStacks::kDead);  // some of the readings are kept
  EXPECT_LT(stacks.memory_bytes(), size_t{32} << 20);

  GrammarRules nested;
  nested.add("root");
  nested.rules[0].expression = E::sequence({E::literal("("), E::optional(E::call(0)), E::literal(")")});
  GrammarStacks deep(*GrammarNetwork::build(nested));
  position = deep.start();
  uint32_t levels = 0;
  for (; levels < 5000; ++levels) {
    const GrammarStacks::Position next = deep.step(position, '(');
    if (next == GrammarStacks::kDead) break;
    position = next;
  }
  EXPECT_GT(levels, 400u);
  EXPECT_LE(levels, GrammarStacks::kMaxDepth + 1);
  for (uint32_t i = 0; i < levels; ++i) position = deep.step(position, ')');
  EXPECT_TRUE(deep.has_ended(position));  // what was begun can be ended
}

TEST(GrammarNetwork, TooManyStatesAreRefused) {
  const auto network =
      GrammarNetwork::build(rule_of(E::repeat(E::repeat(E::literal("abcdefgh"), 1000, 1000), 1000, 1000)));
  ASSERT_FALSE(network.has_value());
  EXPECT_NE(network.error().message.find("more than 262144 states"), std::string::npos)
      << network.error().message;
}

}  // namespace
}  // namespace tandem
