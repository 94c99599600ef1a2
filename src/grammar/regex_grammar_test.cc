#include "grammar/regex_grammar.h"

#include <gtest/gtest.h>

#include "grammar/grammar_testing.h"

namespace tandem {
namespace {

const GrammarExpression kAny = GrammarExpression::range(0, 0x10FFFF);

Read read(std::string_view pattern, std::string_view text, RegexMatch match = RegexMatch::whole) {
  auto expression = regex_grammar(pattern, match, kAny);
  EXPECT_TRUE(expression.has_value()) << expression.error().message;
  if (!expression) return Read::no;
  GrammarRules rules;
  rules.add("root", std::move(*expression));
  return read_text(rules, text);
}

std::string refusal(std::string_view pattern) {
  const auto expression = regex_grammar(pattern, RegexMatch::whole, kAny);
  EXPECT_FALSE(expression.has_value());
  return expression ? "" : expression.error().message;
}

TEST(RegexGrammar, MatchesWholeTexts) {
  EXPECT_EQ(read(R"(\d{3}-\d{4})", "555-0199"), Read::whole);
  EXPECT_EQ(read(R"(\d{3}-\d{4})", "555-019"), Read::begun);
  EXPECT_EQ(read(R"(\d{3}-\d{4})", "a"), Read::no);
  EXPECT_EQ(read(R"(^(?P<a>x|yy)+?[^a-c]$)", "xyyxd"), Read::whole);
  EXPECT_EQ(read(R"((?i:select) \w+)", "SeLeCt a_1"), Read::whole);
  EXPECT_EQ(read(R"([[&&]{2})", "[&"), Read::whole);  // no set operations here
  EXPECT_EQ(read(R"(\p{Lu}.)", "Ä\n"), Read::no);
  EXPECT_EQ(read(R"(\p{Lu}.)", "Ä€"), Read::whole);
  EXPECT_EQ(read("a|^b$|c", "b"), Read::whole);
}

TEST(RegexGrammar, ClassesAreAscii) {
  EXPECT_EQ(read(R"(\d)", "٣"), Read::no);
  EXPECT_EQ(read(R"(\w)", "é"), Read::no);
  EXPECT_EQ(read(R"(\W)", "é"), Read::whole);
  EXPECT_EQ(read(R"(\s\S)", "\tx"), Read::whole);
}

TEST(RegexGrammar, AnchorsBoundWhatMayStandAround) {
  EXPECT_EQ(read("b", "abc", RegexMatch::inside), Read::whole);
  EXPECT_EQ(read("^b", "abc", RegexMatch::inside), Read::no);
  EXPECT_EQ(read("^b", "bc", RegexMatch::inside), Read::whole);
  EXPECT_EQ(read("b$", "ab", RegexMatch::inside), Read::whole);
  EXPECT_EQ(read("^b$|x", "bc", RegexMatch::inside), Read::begun);
  EXPECT_EQ(read("^b$|x", "bcx!", RegexMatch::inside), Read::whole);
}

TEST(RegexGrammar, WhatIsNotRegularIsNamed) {
  EXPECT_NE(refusal("a(?=b)").find("lookahead is not supported"), std::string::npos);
  EXPECT_NE(refusal("(?<!a)b").find("lookbehind"), std::string::npos);
  EXPECT_NE(refusal(R"((a)\1)").find("the escape \"\\1\""), std::string::npos);
  EXPECT_NE(refusal(R"(\bword\b)").find("the escape \"\\b\""), std::string::npos);
  EXPECT_NE(refusal("(^a)").find("an anchor that is not at an end"), std::string::npos);
  EXPECT_NE(refusal("a++").find("possessive repetition"), std::string::npos);
  EXPECT_NE(refusal("(a").find("missing \")\""), std::string::npos);
  EXPECT_NE(refusal("(?P<name").find("a group name without"), std::string::npos);
}

}  // namespace
}  // namespace tandem
