// Masks of grammars at a vocabulary of 128 Ki tokens: of a place that is new, and of one that is known.
//
//   ninja grammar_benchmark && ./grammar_benchmark [--benchmark_filter=...]
//
// TANDEM_TOKENIZER=FOLDER takes the vocabulary of a tokenizer.json; without it, random words whose lengths
// and letters are about those of one.
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "grammar/grammar_expression.h"
#include "grammar/grammar_spec.h"
#include "grammar/token_grammar.h"
#include "tokenizer/tokenizer.h"

namespace tandem {
namespace {

TokenTrie random_vocabulary() {
  constexpr int32_t kTokens = 128 << 10;
  std::mt19937 random(1);
  std::vector<std::pair<std::string, int32_t>> tokens;
  for (int32_t byte = 0; byte < 256; ++byte)
    tokens.emplace_back(std::string(1, static_cast<char>(byte)), byte);
  constexpr std::string_view kLetters = "eeeeetttaaaooiinnsshhrrdlcumwfgypbvk";
  constexpr std::string_view kMarks = "\"{}[]():,.;-_/\\=+*#<>'!?\n0123456789";
  while (static_cast<int32_t>(tokens.size()) < kTokens) {
    std::string word;
    if (random() % 2 == 0) word += ' ';
    const bool marks = random() % 16 == 0;
    for (size_t length = 2 + random() % 8; length > 0; --length) {
      const std::string_view from = marks ? kMarks : kLetters;
      word += from[random() % from.size()];
    }
    tokens.emplace_back(std::move(word), static_cast<int32_t>(tokens.size()));
  }
  return TokenTrie::build(std::move(tokens), kTokens);
}

std::shared_ptr<const TokenTrie> vocabulary() {
  static const auto shared = [] {
    const char* folder = std::getenv("TANDEM_TOKENIZER");
    if (folder == nullptr) return std::make_shared<const TokenTrie>(random_vocabulary());
    const auto tokenizer = Tokenizer::load(folder);
    if (!tokenizer) std::abort();
    auto trie = TokenTrie::build(*tokenizer);
    if (!trie) std::abort();
    return std::make_shared<const TokenTrie>(std::move(*trie));
  }();
  return shared;
}

const GrammarSpec kSchema{
    .kind = GrammarKind::json_schema,
    .text =
        R"({"type":"object","properties":{"name":{"type":"string"},"age":{"type":"integer"},"email":{"type":"string"},
        "address":{"type":"object","properties":{"street":{"type":"string"},"city":{"type":"string"}},"required":["street","city"]},
        "tags":{"type":"array","items":{"type":"string"}},"kind":{"enum":["person","company","robot"]}},
        "required":["name","age","email","address","tags","kind"]})"};
const GrammarSpec kAnyJson{.kind = GrammarKind::json_object};

// The tokens of a random text of the grammar.
std::vector<int32_t> random_text(TokenGrammar& grammar, std::mt19937& random, size_t length) {
  std::vector<int32_t> text;
  std::vector<uint64_t> mask(grammar.mask_words());
  TokenGrammar::State state = grammar.start();
  std::vector<int32_t> allowed;
  while (text.size() < length && !grammar.must_end(state)) {
    grammar.allowed(state, mask);
    allowed.clear();
    for (size_t i = 0; i < mask.size() * 64; ++i) {
      if ((mask[i / 64] >> (i % 64) & 1) != 0) allowed.push_back(static_cast<int32_t>(i));
    }
    text.push_back(allowed[random() % allowed.size()]);
    state = grammar.advance(state, text.back());
  }
  return text;
}

std::shared_ptr<TokenGrammar> compile(const GrammarSpec& spec) {
  return *TokenGrammar::compile(*grammar_rules(spec), vocabulary());
}

// Time of a token: mask and advance. `known`: the same texts again.
void masks_of(benchmark::State& bench, const GrammarSpec& spec, bool known) {
  std::mt19937 random(3);
  std::vector<std::vector<int32_t>> texts;
  auto grammar = compile(spec);
  for (int i = 0; i < 20; ++i) texts.push_back(random_text(*grammar, random, 200));
  std::vector<uint64_t> mask(grammar->mask_words());
  size_t tokens = 0;
  for (auto _ : bench) {
    if (!known) {
      bench.PauseTiming();
      grammar = compile(spec);
      bench.ResumeTiming();
    }
    for (const auto& text : texts) {
      TokenGrammar::State state = grammar->start();
      for (const int32_t token : text) {
        grammar->allowed(state, mask);
        benchmark::DoNotOptimize(mask.data());
        state = grammar->advance(state, token);
      }
      tokens += text.size();
    }
  }
  bench.counters["per_token"] = benchmark::Counter(static_cast<double>(tokens),
                                                   benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

void compile_of(benchmark::State& bench, const GrammarSpec& spec) {
  vocabulary();
  for (auto _ : bench) benchmark::DoNotOptimize(compile(spec));
}

BENCHMARK_CAPTURE(masks_of, schema_first_time, kSchema, false)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(masks_of, schema_known, kSchema, true)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(masks_of, any_json_first_time, kAnyJson, false)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(masks_of, any_json_known, kAnyJson, true)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(compile_of, schema, kSchema)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace tandem

BENCHMARK_MAIN();
