// Forms of answers: the first byte says whether JSON schema, regular expression, GBNF, choice or tool calls;
// the rest is its text. What compiles is walked: a token that the mask allows leads on, one that it does not
// leads nowhere.
#include <algorithm>
#include <random>

#include "fuzzing.h"
#include "grammar/grammar_expression.h"
#include "grammar/grammar_spec.h"
#include "grammar/token_grammar.h"

namespace {

using namespace tandem;
using fuzz::require;

// All bytes, and tokens of several.
std::shared_ptr<const TokenTrie> vocabulary() {
  static const auto made = [] {
    std::vector<std::pair<std::string, int32_t>> tokens;
    for (int32_t byte = 0; byte < 256; ++byte)
      tokens.emplace_back(std::string(1, static_cast<char>(byte)), byte);
    for (const char* text :
         {"{\"", "\":", "\": ", "\",", "\"}", "true", "null", "12", "0.", "  ", ", \"", "abc", "é", "]}"})
      tokens.emplace_back(text, static_cast<int32_t>(tokens.size()));
    const auto count = static_cast<int32_t>(tokens.size());
    return std::make_shared<const TokenTrie>(TokenTrie::build(std::move(tokens), count));
  }();
  return made;
}

void walk(TokenGrammar& grammar, uint32_t seed) {
  std::minstd_rand random(seed);
  std::vector<uint64_t> mask(grammar.mask_words());
  TokenGrammar::State state = grammar.start();
  for (int step = 0; step < 40; ++step) {
    grammar.allowed(state, mask);
    std::vector<int32_t> allowed;
    for (size_t token = 0; token < mask.size() * 64; ++token) {
      if ((mask[token / 64] >> (token % 64) & 1) != 0) allowed.push_back(static_cast<int32_t>(token));
    }
    require(!allowed.empty() || grammar.can_end(state) || step == 0, "every text that may begin may end");
    require(grammar.must_end(state) == (allowed.empty() && grammar.can_end(state)),
            "nothing follows an end that must be");
    const auto other = static_cast<int32_t>(random() % (256 + 14));
    const bool is_allowed = std::ranges::binary_search(allowed, other);
    require((grammar.advance(state, other) != TokenGrammar::kDead) == is_allowed,
            "the mask says what leads on");
    if (allowed.empty()) return;
    state = grammar.advance(state, allowed[random() % allowed.size()]);
    require(state != TokenGrammar::kDead, "what is allowed leads on");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  constexpr GrammarKind kKinds[] = {GrammarKind::json_schema, GrammarKind::regex, GrammarKind::gbnf,
                                    GrammarKind::choice, GrammarKind::tool_calls};
  GrammarSpec spec;
  spec.kind = kKinds[data[0] % std::size(kKinds)];
  spec.text.assign(reinterpret_cast<const char*>(data) + 1, size - 1);
  const auto rules = grammar_rules(spec);
  if (!rules) {
    require(!rules.error().message.empty(), "a refusal says why");
    return 0;
  }
  const auto grammar = TokenGrammar::compile(*rules, vocabulary());
  if (!grammar) {
    require(!grammar.error().message.empty(), "a refusal says why");
    return 0;
  }
  for (const uint32_t seed : {1u, 2u}) walk(**grammar, seed);
  return 0;
}
