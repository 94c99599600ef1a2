#include "attention/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <set>

namespace tandem {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

TokenEvent sample(const std::vector<float>& logits, const SamplingParams& params, uint64_t seed = 1,
                  uint32_t index = 0, const TokenHistory& history = {},
                  const std::vector<int32_t>& never = {}) {
  Sampler sampler;
  auto event = sampler.sample(logits, params, seed, history, {.never = never}, index);
  EXPECT_TRUE(event.has_value()) << event.error().message;
  return event.value_or(TokenEvent{});
}

const std::vector<float> kLogits = {0.5f, 2.0f, -1.0f, 2.0f, 1.0f};

TEST(Sampler, EdgesOfTheParametersAreDefined) {
  for (float temperature : {0.0f, 1e-8f, 1.0f, 2.0f}) {
    for (float top_p : {0.0f, 1e-8f, 1.0f}) {
      for (int32_t top_k : {-1, 0, 1}) {
        SamplingParams params;
        params.temperature = temperature;
        params.top_p = top_p;
        params.top_k = top_k;
        params.top_logprobs = 5;
        ASSERT_TRUE(validate_sampling(params, 5).has_value());
        for (uint32_t index = 0; index < 50; ++index) {
          const TokenEvent event = sample(kLogits, params, 3, index);
          // Of the two equal best logits the lower id is the best token.
          const bool is_greedy = temperature < 1e-6f || top_p < 1e-6f || top_k == 1;
          ASSERT_TRUE(!is_greedy || event.token == 1);
          ASSERT_EQ(event.top_logprobs.size(), 5u);
          ASSERT_TRUE(std::isfinite(event.logprob));
          for (const TokenLogprob& entry : event.top_logprobs) ASSERT_TRUE(std::isfinite(entry.logprob));
        }
      }
    }
  }
}

TEST(Sampler, FrequenciesFollowTheSoftmax) {
  SamplingParams params;
  params.temperature = 0.7f;
  std::map<int32_t, int> counts;
  constexpr int kDraws = 40000;
  Sampler sampler;
  for (int i = 0; i < kDraws; ++i)
    ++counts[sampler.sample(kLogits, params, 42, {}, {}, static_cast<uint32_t>(i))->token];
  double total = 0;
  for (float logit : kLogits) total += std::exp(logit / 0.7);
  double chi_square = 0;
  for (size_t token = 0; token < kLogits.size(); ++token) {
    const double expected = kDraws * std::exp(kLogits[token] / 0.7) / total;
    chi_square += std::pow(counts[static_cast<int32_t>(token)] - expected, 2) / expected;
  }
  EXPECT_LT(chi_square, 18.5);  // 4 degrees of freedom, p = 0.001; the seed is fixed
}

TEST(Sampler, FiltersKeepWhatTheyShould) {
  const std::vector<float> logits = {3.0f, 2.0f, 1.0f, 0.0f};  // probabilities .644 .237 .087 .032
  const auto support = [&](SamplingParams params) {
    std::set<int32_t> tokens;
    for (uint32_t i = 0; i < 3000; ++i) tokens.insert(sample(logits, params, 9, i).token);
    return tokens;
  };
  SamplingParams params;
  EXPECT_EQ(support(params), (std::set<int32_t>{0, 1, 2, 3}));
  params.top_k = 3;
  EXPECT_EQ(support(params), (std::set<int32_t>{0, 1, 2}));
  params = {};
  params.top_p = 0.7f;  // the token that crosses the threshold is in
  EXPECT_EQ(support(params), (std::set<int32_t>{0, 1}));
  params = {};
  params.min_p = 0.1f;
  EXPECT_EQ(support(params), (std::set<int32_t>{0, 1, 2}));
}

TEST(Sampler, EachAnswerHasItsOwnReproducibleStream) {
  const std::vector<float> logits(50, 0.0f);
  SamplingParams params;
  const auto draw = [&](uint64_t seed, uint32_t stream) {
    params.stream = stream;
    std::vector<int32_t> tokens;
    for (uint32_t i = 0; i < 20; ++i) tokens.push_back(sample(logits, params, seed, i).token);
    return tokens;
  };
  EXPECT_EQ(draw(5, 1), draw(5, 1));
  EXPECT_NE(draw(5, 0), draw(5, 1));
  EXPECT_NE(draw(5, 0), draw(6, 0));
}

TEST(Sampler, BiasBansAndPenaltiesChangeTheChoice) {
  SamplingParams greedy;
  greedy.temperature = 0;
  EXPECT_EQ(sample(kLogits, greedy, 1, 0, {}, {1, 3}).token, 4);
  SamplingParams biased = greedy;
  biased.logit_bias = {{2, 100.0f}};
  EXPECT_EQ(sample(kLogits, biased).token, 2);
  TokenHistory history;
  history.generated[1] = 2;
  SamplingParams frequency = greedy;
  frequency.frequency_penalty = 0.1f;
  EXPECT_EQ(sample(kLogits, frequency, 1, 1, history).token, 3);
  SamplingParams repetition = greedy;
  repetition.repetition_penalty = 1.5f;
  history.prompt[3] = 1;
  EXPECT_EQ(sample(kLogits, repetition, 1, 1, history).token, 1);  // both penalised alike: 1.33 beats 1.0
}

TEST(Sampler, LogprobsAreThoseOfTheUnmodifiedLogits) {
  SamplingParams params;
  params.temperature = 0;
  params.top_logprobs = 2;
  params.logit_bias = {{1, -50.0f}};
  const TokenEvent event = sample(kLogits, params);
  EXPECT_EQ(event.token, 3);
  double total = 0;
  for (float logit : kLogits) total += std::exp(logit);
  EXPECT_NEAR(event.logprob, 2.0 - std::log(total), 1e-6);
  ASSERT_EQ(event.top_logprobs.size(), 2u);
  EXPECT_EQ(event.top_logprobs[0].token, 1);
}

TEST(Sampler, SpecialLogitsNeitherCrashNorEscape) {
  SamplingParams params;
  params.top_logprobs = 3;
  const TokenEvent event = sample({kNaN, -kInf, 1.0f}, params);
  EXPECT_EQ(event.token, 2);
  for (const TokenLogprob& entry : event.top_logprobs) EXPECT_GE(entry.logprob, -9999.0f);
  Sampler sampler;
  constexpr int32_t kZero[] = {0};
  EXPECT_EQ(sampler.sample(std::vector<float>{kNaN, kNaN}, params, 1, {}, {}, 0).error().code,
            ErrorCode::internal);
  EXPECT_EQ(sampler.sample(std::vector<float>{1.0f}, params, 1, {}, {.never = kZero}, 0).error().code,
            ErrorCode::internal);
}

TEST(Sampler, OnlyTheAllowedAreChosen) {
  // 130 tokens: two whole words and a bit; a mask that ends early allows nothing behind it.
  std::vector<float> logits(130);
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>(i);
  Sampler sampler;
  SamplingParams params;
  for (const std::vector<uint64_t>& allowed :
       {std::vector<uint64_t>{1ULL << 63, 1ULL << 5, 1}, {1ULL << 63, 1ULL << 5}}) {
    const int32_t best = allowed.size() == 3 ? 128 : 69;
    params.temperature = 0;
    EXPECT_EQ(*sampler.choose(logits, params, 1, {}, {.allowed = allowed}, 0), best);
    params.temperature = 100;
    std::set<int32_t> seen;
    for (uint32_t i = 0; i < 200; ++i)
      seen.insert(*sampler.choose(logits, params, 1, {}, {.allowed = allowed}, i));
    EXPECT_EQ(seen, allowed.size() == 3 ? (std::set<int32_t>{63, 69, 128}) : (std::set<int32_t>{63, 69}));
  }
  const uint64_t none[] = {0, 0, 0};
  EXPECT_NE(sampler.choose(logits, params, 1, {}, {.allowed = none}, 0).error().message.find("its grammar"),
            std::string::npos);
}

TEST(ValidateSampling, NamesTheFieldAndTheValue) {
  const auto message = [](auto change) {
    SamplingParams params;
    change(params);
    const Status status = validate_sampling(params, 100);
    return status ? std::string() : status.error().message;
  };
  EXPECT_EQ(message([](auto&) {}), "");
  EXPECT_NE(message([](auto& p) { p.temperature = -1; }).find("temperature is -1"), std::string::npos);
  EXPECT_NE(message([](auto& p) { p.temperature = kNaN; }).find("temperature"), std::string::npos);
  EXPECT_NE(message([](auto& p) { p.top_p = 1.5f; }).find("top_p"), std::string::npos);
  EXPECT_NE(message([](auto& p) { p.top_k = -2; }).find("top_k is -2"), std::string::npos);
  EXPECT_NE(message([](auto& p) { p.stop_token_ids = {100}; }).find("stop_token_ids: token id 100"),
            std::string::npos);
  EXPECT_NE(message([](auto& p) {
              p.logit_bias = {{-1, 0.0f}};
            }).find("logit_bias: token id -1"),
            std::string::npos);
  EXPECT_EQ(message([](auto& p) { p.max_tokens = 0; }), "") << "the prompt alone";
  EXPECT_NE(message([](auto& p) { p.prompt_logprobs = 21; }).find("prompt_logprobs is 21"),
            std::string::npos);
}

}  // namespace
}  // namespace tandem
