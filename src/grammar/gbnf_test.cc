#include "grammar/gbnf.h"

#include <gtest/gtest.h>

#include "grammar/grammar_testing.h"

namespace tandem {
namespace {

Read read(std::string_view grammar, std::string_view text) {
  const auto rules = parse_gbnf(grammar);
  EXPECT_TRUE(rules.has_value()) << rules.error().message;
  return rules ? read_text(*rules, text) : Read::no;
}

std::string refusal(std::string_view grammar) {
  const auto rules = parse_gbnf(grammar);
  EXPECT_FALSE(rules.has_value());
  return rules ? "" : rules.error().message;
}

TEST(Gbnf, AnArithmeticGrammar) {
  constexpr std::string_view kGrammar = R"gbnf(
# sums of products
root  ::= (expr "=" ws term "\n")+
expr  ::= term ([-+*/] term)*
term  ::= ident | num | "(" ws expr ")" ws
ident ::= [a-z] [a-z0-9_]* ws
num   ::= [0-9]+ ws   # digits
ws    ::= [ \t\n]*
)gbnf";
  EXPECT_EQ(read(kGrammar, "a+3*(b-4)=x\n"), Read::whole);
  EXPECT_EQ(read(kGrammar, "a +3 = 7\nb=1\n"), Read::whole);
  EXPECT_EQ(read(kGrammar, "a+3*(b-4"), Read::begun);
  EXPECT_EQ(read(kGrammar, "a+*"), Read::no);
}

TEST(Gbnf, AlternativesGoOnInTheNextLine) {
  EXPECT_EQ(read("root ::= \"a\"\n  | \"b\"\nother ::= \"c\"", "b"), Read::whole);
  EXPECT_EQ(read("root ::=\n  \"a\" |\n \"b\" \"c\"", "bc"), Read::whole);
}

TEST(Gbnf, EscapesClassesAndCounts) {
  EXPECT_EQ(read(R"(root ::= "\x41\u00e9\U0001F600\"\\" [^\x00-\x1f"]{2} [\]\-a-c]{1,} .?)", "Aé😀\"\\ü!]-b"),
            Read::whole);
  EXPECT_EQ(read(R"(root ::= [a-]+)", "a-a"), Read::whole);
  EXPECT_EQ(read(R"(root ::= ("x" | "y"){2,3})", "xyxy"), Read::no);
}

TEST(Gbnf, ErrorsNameThePlace) {
  EXPECT_NE(refusal("root ::= word").find("the rule \"word\" is not there"), std::string::npos);
  EXPECT_NE(refusal("start ::= \"a\"").find("the rule \"root\" is not there"), std::string::npos);
  EXPECT_NE(refusal("root ::= \"a\"\nroot ::= \"b\"").find("a second rule \"root\" at line 2, column 1"),
            std::string::npos);
  EXPECT_NE(refusal("root ::= \"a\n").find("a text without its closing quote at line 1"), std::string::npos);
  EXPECT_NE(refusal("root ::= [z-a]").find("a range that runs backwards"), std::string::npos);
  EXPECT_NE(refusal("root ::= (\"a\"").find("missing \")\""), std::string::npos);
  EXPECT_NE(refusal("root ::= \"a\" )").find("a stray \")\" at line 1, column 14"), std::string::npos);
  EXPECT_NE(refusal("root : \"a\"").find("\"::=\" is missing at line 1, column 6"), std::string::npos);
  EXPECT_NE(refusal("root ::= \"\\q\"").find("the unknown escape \"\\q\""), std::string::npos);
  EXPECT_NE(refusal("root ::= \"a\"+*").find("a repetition of a repetition"), std::string::npos);
  EXPECT_NE(refusal("root ::= \"a\"{3,1}").find("{n,m} with n above m"), std::string::npos);
  EXPECT_NE(refusal("root ::= " + std::string(200, '(')).find("nesting deeper than 100"), std::string::npos);
}

}  // namespace
}  // namespace tandem
