#include "grammar/token_grammar.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <utility>
#include <vector>

#include "grammar/gbnf.h"
#include "grammar/grammar_spec.h"
#include "grammar/json_schema.h"

namespace tandem {
namespace {

// Every byte, and words over the characters that grammars are made of.
std::shared_ptr<const TokenTrie> make_trie(std::mt19937& random, int32_t words) {
  std::vector<std::pair<std::string, int32_t>> tokens;
  int32_t id = 3;  // three control tokens before them
  for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(std::string(1, static_cast<char>(byte)), id++);
  constexpr std::string_view kPieces[] = {"{",    "}",   "[",    "]", "\"",   ",",    ":", " ", "\n",
                                          "a",    "b",   "name", "1", "20",   "-",    ".", "e", "\\",
                                          "\\\"", "u00", "é",    "😀", "true", "null", "(", ")"};
  for (int32_t i = 0; i < words; ++i) {
    std::string word;
    for (size_t pieces = 1 + random() % 5; pieces > 0; --pieces)
      word += kPieces[random() % std::size(kPieces)];
    tokens.emplace_back(word, id++);
  }
  return std::make_shared<const TokenTrie>(
      TokenTrie::build(std::move(tokens), static_cast<uint32_t>(id + 5)));
}

std::vector<GrammarRules> grammars() {
  std::vector<GrammarRules> out;
  const auto add = [&](Result<GrammarRules> rules) {
    ASSERT_TRUE(rules.has_value()) << rules.error().message;
    out.push_back(std::move(*rules));
  };
  out.push_back(json_object_grammar());
  add(json_schema_grammar(R"({"type":"object","properties":{"name":{"type":"string","maxLength":6},
      "list":{"type":"array","items":{"type":"integer","minimum":-20,"maximum":120}},"a":{"$ref":"#"}},
      "required":["list"],"additionalProperties":{"type":"boolean"}})"));
  add(parse_gbnf("root ::= (\"(\" root \")\" | \"[\" root \"]\" | [a-b]+ | \"é\")*"));
  // Ambiguous: several stacks for one text.
  add(parse_gbnf("root ::= x | y\nx ::= \"a\" x \"b\" | \"a\"* \"1\"\ny ::= \"a\" y | \"b\" y? | \"1\""));
  return out;
}

TEST(TokenGrammar, TheMaskHoldsExactlyTheTokensThatLeadOn) {
  std::mt19937 random(7);
  const auto trie = make_trie(random, 1500);
  for (const GrammarRules& rules : grammars()) {
    const auto compiled = TokenGrammar::compile(rules, trie);
    ASSERT_TRUE(compiled.has_value()) << compiled.error().message;
    TokenGrammar& grammar = **compiled;
    std::vector<uint64_t> mask(grammar.mask_words());
    for (int text = 0; text < 12; ++text) {
      TokenGrammar::State state = grammar.start();
      for (int step = 0; step < 40; ++step) {
        grammar.allowed(state, mask);
        std::vector<int32_t> allowed;
        for (int32_t token = 0; token < static_cast<int32_t>(trie->vocab_size()); ++token) {
          const bool bit = (mask[static_cast<size_t>(token) / 64] >> (token % 64) & 1) != 0;
          ASSERT_EQ(bit, grammar.advance(state, token) != TokenGrammar::kDead) << trie->bytes(token);
          if (bit) allowed.push_back(token);
        }
        EXPECT_EQ(grammar.must_end(state), grammar.can_end(state) && allowed.empty());
        if (allowed.empty()) {
          EXPECT_TRUE(grammar.can_end(state)) << "a place that nothing leads on from, and no end";
          break;
        }
        state = grammar.advance(state, allowed[random() % allowed.size()]);
      }
    }
  }
}

TEST(TokenGrammar, EqualPlacesAreOneState) {
  std::mt19937 random(1);
  const auto trie = make_trie(random, 0);
  auto rules = parse_gbnf("root ::= \"x\" [a-c]* \"y\"");
  const auto grammar = *TokenGrammar::compile(*rules, trie);
  const auto token = [](char c) { return 3 + static_cast<int32_t>(static_cast<unsigned char>(c)); };
  const auto after_x = grammar->advance(grammar->start(), token('x'));
  const auto after_a = grammar->advance(after_x, token('a'));
  EXPECT_EQ(grammar->advance(after_a, token('b')), after_a);
  EXPECT_EQ(grammar->advance(after_a, token('x')), TokenGrammar::kDead);
  EXPECT_EQ(grammar->advance(after_a, 0), TokenGrammar::kDead);  // a control token
  EXPECT_EQ(grammar->advance(after_a, 1 << 20), TokenGrammar::kDead);
  const auto end = grammar->advance(after_a, token('y'));
  EXPECT_TRUE(grammar->can_end(end));
  EXPECT_TRUE(grammar->must_end(end));
  EXPECT_FALSE(grammar->can_end(after_a));
}

TEST(TokenGrammar, RightRecursionStaysFlat) {
  std::mt19937 random(1);
  const auto trie = make_trie(random, 0);
  auto rules = parse_gbnf("root ::= \"a\" root | \"b\"");
  const auto grammar = *TokenGrammar::compile(*rules, trie);
  const int32_t a = 3 + 'a';
  const TokenGrammar::State once = grammar->advance(grammar->start(), a);
  TokenGrammar::State state = once;
  for (int i = 0; i < 1000; ++i) state = grammar->advance(state, a);
  EXPECT_EQ(state, once);
}

TEST(TokenGrammar, AGrammarOfNothingIsRefused) {
  GrammarRules rules;
  rules.add("root", GrammarExpression::choice({}));
  std::mt19937 random(1);
  const auto compiled = TokenGrammar::compile(rules, make_trie(random, 0));
  ASSERT_FALSE(compiled.has_value());
  EXPECT_EQ(compiled.error().message, "the grammar matches no text");
}

TEST(TokenTrie, HoldsEveryTokenOnce) {
  const TokenTrie trie = TokenTrie::build({{"b", 4}, {"ab", 1}, {"a", 0}, {"abc", 2}, {"a", 3}, {"", 5}}, 8);
  EXPECT_EQ(trie.size(), 4u);  // a, ab, abc, b
  EXPECT_EQ(trie.nodes()[0].end, 3u);
  EXPECT_EQ(std::vector<int32_t>(trie.tokens(0).begin(), trie.tokens(0).end()), (std::vector<int32_t>{0, 3}));
  EXPECT_EQ(trie.nodes()[2].depth, 3u);
  EXPECT_EQ(trie.tokens(3)[0], 4);
  EXPECT_EQ(trie.bytes(2), "abc");
  EXPECT_EQ(trie.bytes(5), "");
  EXPECT_EQ(trie.bytes(-1), "");
}

// What no text comes to an end behind is never allowed: characters without UTF-8, empty classes, rules
// without end.
TEST(TokenGrammar, NothingLeadsWhereNoTextEnds) {
  std::mt19937 random(1);
  const auto trie = make_trie(random, 10);
  const auto compile = [&](GrammarKind kind, const char* text) {
    return TokenGrammar::compile(grammar_rules({.kind = kind, .text = text}).value(), trie);
  };
  for (const char* text : {"prefi\\ud800", "a[^\\s\\S]"}) {
    const auto compiled = compile(GrammarKind::regex, text);
    ASSERT_FALSE(compiled) << text;
    EXPECT_EQ(compiled.error().message, "the grammar matches no text");
  }
  EXPECT_FALSE(compile(GrammarKind::gbnf, "root ::= \"a\" root"));
  const auto grammar = compile(GrammarKind::regex, "a[^\\s\\S]|b").value();
  EXPECT_EQ(grammar->advance(grammar->start(), 3 + 'a'), TokenGrammar::kDead);
  EXPECT_NE(grammar->advance(grammar->start(), 3 + 'b'), TokenGrammar::kDead);
}

}  // namespace
}  // namespace tandem
