// Drafts: verified, sampled, refused, cancelled; from a drafter that knows the answers and from the model's
// own.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <thread>

#include "attention/attention_worker_served.h"
#include "model/offline_runner.h"

namespace tandem {
namespace {

using namespace test;

// Sampled in every way that the sampler knows, and greedy.
GenerationRequest varied_request(const Served& served, uint32_t i) {
  GenerationRequest request = served.request(i, 1 + i * 7, 20);
  SamplingParams& sampling = request.sampling;
  sampling.seed = i;
  sampling.temperature = i % 3 == 0 ? 0.0f : 0.8f;
  if (i % 4 == 1) sampling.top_p = 0.9f;
  if (i % 5 == 2) sampling.repetition_penalty = 1.3f;
  if (i % 5 == 3) sampling.frequency_penalty = 0.7f;
  if (i % 6 == 4) sampling.top_k = 20;
  if (i % 7 == 5) sampling.logit_bias = {{3, 2.0f}, {5, -2.0f}};
  sampling.top_logprobs = i % 2 == 0 ? 2 : -1;
  return request;
}

std::vector<Answer> answer_varied(Served& served, std::vector<GenerationRequest>* asked = nullptr) {
  std::vector<std::shared_ptr<Recorder>> recorders;
  std::vector<Answer> answers;
  const auto first = std::make_shared<Recorder>();
  AllAtOnce all(*first);
  for (uint32_t i = 0; i < 12; ++i) {
    const GenerationRequest request = varied_request(served, i);
    if (asked != nullptr) asked->push_back(request);
    recorders.push_back(served.submit(request, i == 0 ? first : std::make_shared<Recorder>()));
  }
  all.go();
  for (const auto& recorder : recorders) {
    const Finish finish = recorder->wait();
    EXPECT_EQ(finish.completion_tokens, 20u);
    answers.push_back({recorder->tokens(), finish.logits_hash});
  }
  EXPECT_EQ(served.worker->stats().kv_blocks_used, 0u);
  return answers;
}

// Right and wrong drafts, in batches, in a pool that is too small, over lanes whose replies come in any
// order, always or as measured: token for token, and bit for bit, what is said without drafts.
TEST(AttentionWorker, DraftsChangeNoBit) {
  Served alone;
  std::vector<GenerationRequest> asked;
  const auto want = answer_varied(alone, &asked);
  uint64_t accepted = 0, refused = 0, preempted = 0;
  for (const double truth : {0.0, 0.7, 1.0}) {
    for (const uint32_t lanes : {1u, 3u}) {
      Prophet prophet(truth, lanes);
      for (size_t i = 0; i < want.size(); ++i) prophet.learn(asked[i].prompt, want[i].tokens);
      Served served({.num_blocks = lanes == 3 ? 9u : 400u,
                     .max_num_seqs = 5,
                     .max_num_batched_tokens = 11,
                     .lanes = {lanes, false, LaneSplit::by_token},
                     .late = lanes == 3 ? std::optional(7u) : std::nullopt,
                     .speculation = {4, truth == 0.7},
                     .drafter = &prophet});
      EXPECT_EQ(answer_varied(served), want) << truth << ", " << lanes << " lanes";
      const SpeculationStats stats = served.worker->stats().speculation;
      EXPECT_GT(stats.drafted, 0u);
      EXPECT_EQ(truth == 0.0, stats.accepted == 0);
      EXPECT_EQ(truth == 1.0, stats.accepted == stats.drafted);
      uint64_t by_position = 0;
      for (const uint64_t count : stats.accepted_at) by_position += count;
      EXPECT_EQ(by_position, stats.accepted);
      accepted += stats.accepted;
      refused += stats.drafted - stats.accepted;
      preempted += served.worker->stats().preempted;
    }
  }
  EXPECT_GT(accepted, 100u);
  EXPECT_GT(refused, 100u);
  EXPECT_GT(preempted, 0u);
}

// The same with the drafter that a checkpoint brings, its keys in the pool and its rows among the others.
TEST(AttentionWorker, TheModelsOwnDraftsChangeNoBit) {
  Served alone({.fixture = "deepseek_v3_mtp"});
  const auto want = answer_varied(alone);
  uint64_t preempted = 0;
  for (const uint32_t tokens : {1u, 3u}) {
    for (const uint32_t lanes : {1u, 3u}) {
      for (const bool automatic : {false, true}) {
        Served served({.num_blocks = lanes == 3 ? 9u : 400u,
                       .max_num_seqs = 5,
                       .max_num_batched_tokens = 11,
                       .lanes = {lanes, false, LaneSplit::by_token},
                       .late = lanes == 3 ? std::optional(tokens) : std::nullopt,
                       .speculation = {tokens, automatic},
                       .fixture = "deepseek_v3_mtp",
                       .captures = automatic});
        EXPECT_EQ(answer_varied(served), want) << tokens << " drafts, " << lanes << " lanes";
        const EngineStats stats = served.worker->stats();
        const SpeculationStats& drafts = stats.speculation;
        EXPECT_GT(drafts.drafted, 0u);
        EXPECT_GT(drafts.accepted, drafts.drafted / 5) << "the drafter sees other rows than it should";
        EXPECT_LT(drafts.accepted, drafts.drafted);
        EXPECT_GT(drafts.rounds, 0u);
        EXPECT_EQ(stats.execution.graph_replays > 0, automatic);
        preempted += stats.preempted;
      }
    }
  }
  EXPECT_GT(preempted, 0u);
}

// Chunks, batches, lanes and rejected drafts give the drafter the rows that it would see of the whole text.
TEST(AttentionWorker, DraftsAreThoseOfTheWholeText) {
  Served alone({.fixture = "deepseek_v3_mtp"});
  const auto want = answer_all(alone, false);
  Served held({.speculation = {1, false}, .fixture = "deepseek_v3_mtp"});
  OfflineOptions options;
  options.capacity = options.tokens_per_sequence = 128;
  const auto offline = OfflineRunner::create(*held.model, held.runner, options);
  ASSERT_TRUE(offline) << offline.error().message;
  uint64_t drafted = 0, accepted = 0;
  for (uint32_t i = 0; i < want.size(); ++i) {
    std::vector<int32_t> text = held.request(i, 1 + i * 7, 20).prompt;
    const size_t prompt = text.size();
    text.insert(text.end(), want[i].tokens.begin(), want[i].tokens.end());
    std::vector<OfflineRow> rows, behind;
    for (uint32_t position = 0; position + 1 < text.size(); ++position) {
      rows.push_back({0, position, text[position]});
      behind.push_back({0, position, text[position + 1]});
    }
    ASSERT_TRUE((*offline)->run(rows));
    const std::vector<float> logits = [&] {
      const auto span = (*offline)->run_drafts(behind).value();
      return std::vector<float>(span.begin(), span.end());
    }();
    const size_t vocab = held.config.vocab_size;
    // Up to the last token that may still be drafted: the step behind it gives one token more.
    for (size_t said = prompt + 1; said + 1 < text.size();) {
      const auto row = logits.begin() + static_cast<std::ptrdiff_t>((said - 2) * vocab);
      const auto best = std::max_element(row, row + static_cast<std::ptrdiff_t>(vocab)) - row;
      ++drafted;
      const bool right = best == text[said];
      accepted += right ? 1 : 0;
      said += right ? 2 : 1;
    }
  }
  EXPECT_GT(accepted, 50u);
  for (const uint32_t lanes : {1u, 3u}) {
    Served served({.max_num_seqs = 7,
                   .max_num_batched_tokens = 17,
                   .lanes = {lanes, false, LaneSplit::by_token},
                   .late = lanes == 3 ? std::optional(1u) : std::nullopt,
                   .speculation = {1, false},
                   .fixture = "deepseek_v3_mtp"});
    EXPECT_EQ(answer_all(served, false), want);
    const SpeculationStats stats = served.worker->stats().speculation;
    EXPECT_EQ(stats.drafted, drafted) << lanes;
    EXPECT_EQ(stats.accepted, accepted) << lanes;
  }
}

TEST(AttentionWorker, ALostPeerAmongDraftsEndsEveryRequestByName) {
  Served served({.max_context = 6000, .speculation = {2, false}, .fixture = "deepseek_v3_mtp"});
  for (int round = 0; round < 5; ++round) {
    const auto open = served.submit_and_lose(1000, static_cast<size_t>(2 + round));
    for (const auto& recorder : open) {
      const Finish finish = recorder->wait();
      ASSERT_EQ(finish.reason, FinishReason::error);
      EXPECT_EQ(finish.error.message, LosablePort::kReason);
    }
    EXPECT_EQ(served.worker->stats().kv_blocks_used, 0u);
    served.port->lost = false;
    const Instant end = now() + std::chrono::seconds(30);
    while (!served.worker->health().has_value() && now() < end)
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  EXPECT_EQ(served.submit(served.request(9, 10, 8))->wait().completion_tokens, 8u);
}

TEST(AttentionWorker, AnAnswerEndsInsideItsDrafts) {
  Served alone({.max_context = 30});
  const auto reference = alone.submit(alone.request(5, 10, 16));
  reference->wait();
  const std::vector<int32_t> tokens = reference->tokens();
  const auto with_drafts = [&](GenerationRequest request, uint32_t max_context = 200) {
    Prophet prophet(1.0, 1);
    prophet.learn(request.prompt, tokens);
    Served served({.max_context = max_context, .speculation = {8, false}, .drafter = &prophet});
    const auto recorder = served.submit(request);
    const Finish finish = recorder->wait();
    EXPECT_EQ(finish.completion_tokens, recorder->tokens().size());
    EXPECT_EQ(served.worker->stats().kv_blocks_used, 0u);
    return std::pair(recorder->tokens(), finish.reason);
  };
  for (uint32_t length = 1; length <= 16; ++length) {
    const std::vector<int32_t> want(tokens.begin(), tokens.begin() + length);
    EXPECT_EQ(with_drafts(alone.request(5, 10, length)), std::pair(want, FinishReason::length));
    EXPECT_EQ(with_drafts(alone.request(5, 10, 16), 10 + length), std::pair(want, FinishReason::length));
    GenerationRequest stopped = alone.request(5, 10, 16);
    stopped.sampling.stop_token_ids = {tokens[length - 1]};
    const auto end = std::find(tokens.begin(), tokens.end(), tokens[length - 1]) + 1;
    EXPECT_EQ(with_drafts(stopped), std::pair(std::vector(tokens.begin(), end), FinishReason::stop));
  }
}

TEST(AttentionWorker, CancelsAmongDraftsGiveEverythingBack) {
  Served alone;
  std::vector<GenerationRequest> asked;
  const auto want = answer_varied(alone, &asked);
  Prophet prophet(0.8, 3);
  for (size_t i = 0; i < want.size(); ++i) prophet.learn(asked[i].prompt, want[i].tokens);
  Served served({.num_blocks = 30, .late = 4, .speculation = {3, false}, .drafter = &prophet});
  std::vector<std::shared_ptr<Recorder>> recorders;
  for (uint32_t i = 0; i < 60; ++i) {
    RequestId id = 0;
    recorders.push_back(served.submit(varied_request(served, i % 12), &id));
    if (i % 3 != 0) recorders.back()->wait_for_tokens(i % 5);
    served.worker->cancel(id);
  }
  for (const auto& recorder : recorders) recorder->wait();
  EXPECT_EQ(served.worker->stats().kv_blocks_used, 0u);
  EXPECT_EQ(answer_varied(served), want);
}

// Every token is a letter; the last ones of them come in threes.
Result<std::shared_ptr<const TokenTrie>> letters(uint32_t vocab_size) {
  std::vector<std::pair<std::string, int32_t>> tokens;
  for (uint32_t id = 0; id < vocab_size; ++id) {
    tokens.emplace_back(std::string(id % 5 == 0 ? 3 : 1, static_cast<char>('a' + id % 26)),
                        static_cast<int32_t>(id));
  }
  return std::make_shared<const TokenTrie>(TokenTrie::build(std::move(tokens), vocab_size));
}

// A form with drafts of the model's own, in a pool that is too small: what is said without either, inside the
// form to the last token.
TEST(AttentionWorker, DraftsAndPreemptionKeepTheForm) {
  const GrammarSpec form{.kind = GrammarKind::regex, .text = "(?:[a-e]{2}|[k-z]){10,}[f-j]"};
  std::vector<Answer> want;
  uint64_t preempted = 0, accepted = 0;
  for (const uint32_t drafts : {0u, 2u}) {
    Served::Limits limits{.num_blocks = drafts == 0 ? 400u : 8u,
                          .max_num_seqs = 5,
                          .speculation = {drafts, false},
                          .fixture = "deepseek_v3_mtp"};
    limits.vocabulary = [] { return letters(1 << 16); };
    Served served(limits);
    std::vector<std::shared_ptr<Recorder>> recorders;
    const auto first = std::make_shared<Recorder>();
    AllAtOnce all(*first);
    for (uint32_t i = 0; i < 12; ++i) {
      GenerationRequest request = varied_request(served, i);
      request.sampling.grammar = form;
      recorders.push_back(served.submit(request, i == 0 ? first : std::make_shared<Recorder>()));
    }
    all.go();
    std::vector<Answer> answers;
    for (const auto& recorder : recorders) {
      const Finish finish = recorder->wait();
      answers.push_back({recorder->tokens(), finish.logits_hash});
      GrammarCache cache(limits.vocabulary);
      AnswerForm place = *cache.form(form);
      for (const int32_t token : answers.back().tokens) place.advance(token);
      std::vector<uint64_t> mask;
      place.allowed({}, mask);
      const bool can_go_on = std::ranges::any_of(mask, [](uint64_t word) { return word != 0; });
      // Ended because the form did, or cut off inside it; never outside.
      EXPECT_EQ(finish.reason, place.must_end() ? FinishReason::stop : FinishReason::length);
      EXPECT_NE(place.must_end(), can_go_on);
    }
    if (drafts == 0) want = answers;
    EXPECT_EQ(answers, want);
    preempted += served.worker->stats().preempted;
    accepted += served.worker->stats().speculation.accepted;
  }
  EXPECT_GT(preempted, 0u);
  EXPECT_GT(accepted, 0u);
}

TEST(AttentionWorker, AFormWithoutAVocabularyIsRefused) {
  Served served;
  GenerationRequest request = served.request(1, 4, 4);
  request.sampling.grammar = {.kind = GrammarKind::json_object};
  EXPECT_NE(served.refusal(request).find("needs the model's tokenizer.json"), std::string::npos);
}

}  // namespace
}  // namespace tandem
