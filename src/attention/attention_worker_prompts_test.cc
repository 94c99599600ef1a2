// Log probabilities of prompts: the numbers of the reference, and in every setup the bits of decoding.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "attention/attention_worker_served.h"
#include "model/parity_fixture.h"

namespace tandem {
namespace {

using namespace test;

struct Score {
  int32_t token;
  float logprob;
  uint32_t rank;
  std::vector<std::pair<int32_t, float>> top;
  bool operator==(const Score&) const = default;
};

Score score_of(const TokenEvent& event) {
  Score score{event.token, event.logprob, event.rank, {}};
  for (const TokenLogprob& top : event.top_logprobs) score.top.emplace_back(top.token, top.logprob);
  return score;
}

std::vector<Score> scores_of(Recorder& recorder) {
  std::vector<Score> scores;
  uint32_t position = 1;
  for (const auto& [at, event] : recorder.prompt()) {
    EXPECT_EQ(at, position++);
    scores.push_back(score_of(event));
  }
  return scores;
}

GenerationRequest scoring(std::vector<int32_t> prompt, uint32_t max_tokens = 0) {
  GenerationRequest request;
  request.prompt = std::move(prompt);
  request.sampling.temperature = 0;
  request.sampling.max_tokens = max_tokens;
  request.sampling.prompt_logprobs = 3;
  request.hash_logits = true;
  return request;
}

// Texts that the model wrote itself, each with what it thought of its tokens while it wrote them.
struct Written {
  std::vector<int32_t> text;
  uint32_t prompt_tokens = 0;
  std::vector<Score> scores;  // of the tokens behind the prompt
};

std::vector<Written> write_texts(Served& served) {
  std::vector<Written> texts;
  for (uint32_t i = 0; i < 8; ++i) {
    GenerationRequest request = served.request(i, 1 + i * 9, 30);
    request.sampling.top_logprobs = 3;
    request.sampling.temperature = i % 2 == 0 ? 0.0f : 1.0f;
    request.sampling.seed = i;
    const auto recorder = served.submit(request);
    EXPECT_EQ(recorder->wait().reason, FinishReason::length);
    Written written{request.prompt, static_cast<uint32_t>(request.prompt.size()), {}};
    for (const TokenEvent& event : recorder->events()) {
      written.text.push_back(event.token);
      written.scores.push_back(score_of(event));
    }
    texts.push_back(std::move(written));
  }
  return texts;
}

void expect_the_same_scores(Served& served, const std::vector<Written>& texts, const std::string& setup) {
  std::vector<std::shared_ptr<Recorder>> recorders;
  for (const Written& written : texts) recorders.push_back(served.submit(scoring(written.text)));
  for (size_t i = 0; i < texts.size(); ++i) {
    const Finish finish = recorders[i]->wait();
    EXPECT_EQ(finish.reason, FinishReason::length) << finish.error.message;
    EXPECT_EQ(finish.completion_tokens, 0u);
    EXPECT_TRUE(recorders[i]->tokens().empty());
    const std::vector<Score> scores = scores_of(*recorders[i]);
    ASSERT_EQ(scores.size() + 1, texts[i].text.size()) << setup;
    for (size_t t = 0; t < scores.size(); ++t) EXPECT_EQ(scores[t].token, texts[i].text[t + 1]);
    EXPECT_TRUE(std::equal(texts[i].scores.begin(), texts[i].scores.end(),
                           scores.begin() + texts[i].prompt_tokens - 1))
        << setup << ": text " << i;
  }
  EXPECT_EQ(served.worker->stats().kv_blocks_used, 0u);
}

TEST(AttentionWorkerPrompts, ScoresAreThoseOfTheReference) {
  Served served({.max_num_seqs = 3, .max_num_batched_tokens = 7});
  const auto fixture = read_parity_fixture("tests/fixtures/qwen3_moe", served.config);
  ASSERT_TRUE(fixture) << fixture.error().message;
  size_t compared = 0, off = 0;
  for (const FixturePrompt& prompt : *fixture) {
    if (prompt.ids.size() >= 200) continue;
    const auto recorder = served.submit(scoring(prompt.ids));
    recorder->wait();
    for (const auto& [position, event] : recorder->prompt()) {
      const float* logits = &prompt.logits[size_t{position - 1} * served.config.vocab_size];
      double sum = 0;
      for (uint32_t id = 0; id < served.config.vocab_size; ++id) sum += std::exp(double{logits[id]});
      const double want = double{logits[event.token]} - std::log(sum);
      EXPECT_EQ(event.token, prompt.ids[position]);
      off += std::abs(event.logprob - want) > 0.05 ? 1 : 0;
      ++compared;
    }
  }
  // A bf16 router chooses other experts than the reference now and then.
  EXPECT_GT(compared, 30u);
  EXPECT_LE(off, compared / 10) << compared;
}

TEST(AttentionWorkerPrompts, ScoresHaveTheBitsOfDecodingInEverySetup) {
  Served alone;
  const std::vector<Written> texts = write_texts(alone);
  expect_the_same_scores(alone, texts, "one lane");  // the prompts are in the prefix cache by now
  EXPECT_EQ(alone.submit(scoring(texts[7].text))->wait().cached_tokens, 0u);

  // Heads of one row, and of three; sequences that push each other out.
  Served narrow({.max_num_seqs = 1, .max_num_batched_tokens = 50});
  expect_the_same_scores(narrow, texts, "one row a head");
  Served tight({.num_blocks = 9, .max_num_seqs = 3, .max_num_batched_tokens = 11});
  expect_the_same_scores(tight, texts, "tight");
  for (const LaneSplit split : {LaneSplit::by_request, LaneSplit::by_token}) {
    Served lanes({.max_num_seqs = 5,
                  .max_num_batched_tokens = 40,
                  .lanes = {3, false, split},
                  .late = 1 + static_cast<uint32_t>(split)});
    expect_the_same_scores(lanes, texts, "lanes");
  }
}

// Beside answers, with answers of their own, pushed out in the middle: nobody's bits change, and no token is
// scored twice.
TEST(AttentionWorkerPrompts, ScoringAmongAnswersChangesNoBit) {
  Served alone;
  const std::vector<Answer> want = answer_all(alone, true);
  std::vector<std::vector<Score>> want_scores;
  for (uint32_t i = 0; i < 6; ++i) {
    GenerationRequest request = alone.request(i, 40 + i, 12);
    request.sampling.prompt_logprobs = 2;
    const auto recorder = alone.submit(request);
    recorder->wait();
    want_scores.push_back(scores_of(*recorder));
  }
  // Two that are scored begin with three blocks each and end with four: whatever runs beside them, one is
  // pushed out.
  Served tight({.num_blocks = 7, .max_num_seqs = 4, .max_num_batched_tokens = 13});
  uint64_t preempted = 0;
  for (int round = 0; round < 10 && preempted == 0; ++round) {
    std::vector<std::shared_ptr<Recorder>> scored, answered;
    const auto first = std::make_shared<Recorder>();
    AllAtOnce all(*first);
    for (uint32_t i = 0; i < 6; ++i) {
      answered.push_back(
          tight.submit(tight.request(i, 1 + i * 7, 20), i == 0 ? first : std::make_shared<Recorder>()));
      GenerationRequest request = tight.request(i, 40 + i, 12);
      request.sampling.prompt_logprobs = 2;
      scored.push_back(tight.submit(request));
    }
    all.go();
    for (uint32_t i = 0; i < 6; ++i) {
      const Finish finish = answered[i]->wait();
      EXPECT_EQ((Answer{answered[i]->tokens(), finish.logits_hash}), want[i]);
      EXPECT_EQ(scored[i]->wait().completion_tokens, 12u);
      EXPECT_EQ(scores_of(*scored[i]), want_scores[i]);
    }
    preempted = tight.worker->stats().preempted;
  }
  EXPECT_GT(preempted, 0u);
}

TEST(AttentionWorkerPrompts, DraftsSeeTheSameRows) {
  const SpeculationOptions drafts{.num_tokens = 1};
  Served plain({.fixture = "deepseek_v3_mtp"});
  const std::vector<Written> texts = write_texts(plain);
  Served served(
      {.max_num_seqs = 2, .max_num_batched_tokens = 20, .speculation = drafts, .fixture = "deepseek_v3_mtp"});
  expect_the_same_scores(served, texts, "drafts");
  GenerationRequest request = served.request(3, 30, 20);
  const Finish want = plain.submit(request)->wait();
  request.sampling.prompt_logprobs = 0;
  EXPECT_EQ(served.submit(request)->wait().logits_hash, want.logits_hash);
  EXPECT_GT(served.worker->stats().speculation.drafted, 0u);
}

TEST(AttentionWorkerPrompts, OneTokenHasNothingToScoreAndCancelsEndIt) {
  Served served({.max_num_seqs = 1, .max_num_batched_tokens = 16});
  const auto one = served.submit(scoring({5}, 2));
  EXPECT_EQ(one->wait().completion_tokens, 2u);
  EXPECT_TRUE(one->prompt().empty());
  for (uint32_t i = 0; i < 20; ++i) {
    RequestId id = 0;
    const auto recorder = served.submit(scoring(served.request(i, 150, 1).prompt, 4), &id);
    served.worker->cancel(id);
    recorder->wait();
  }
  EXPECT_EQ(served.worker->stats().kv_blocks_used, 0u);
  GenerationRequest bad = scoring({1, 2});
  bad.sampling.prompt_logprobs = 21;
  EXPECT_NE(served.refusal(bad).find("prompt_logprobs is 21; it must be in 0..20"), std::string::npos);
}

}  // namespace
}  // namespace tandem
