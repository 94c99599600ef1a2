// The prefix cache behind the worker: whatever is found, chunked, drafted for, pushed out or cancelled,
// answers have the bits that they have when everything is computed.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "attention/attention_worker_grouped.h"
#include "attention/attention_worker_served.h"
#include "model/dspark_testing.h"

namespace tandem {
namespace {

using namespace test;

Answer answer_of(Served& served, const GenerationRequest& request, uint32_t* cached = nullptr) {
  const auto recorder = served.submit(request);
  const Finish finish = recorder->wait();
  EXPECT_NE(finish.reason, FinishReason::error) << finish.error.message;
  EXPECT_EQ(finish.prompt_tokens, request.prompt.size());
  if (cached != nullptr) *cached = finish.cached_tokens;
  return {recorder->tokens(), finish.logits_hash};
}

TEST(AttentionWorkerPrefix, AWholePromptInTheCacheStillComputesItsLastToken) {
  Served plain({.prefix_caching = false});
  std::map<uint32_t, Answer> want;
  for (const uint32_t length : {1u, 15u, 16u, 17u, 31u, 32u, 33u, 100u})
    want[length] = answer_of(plain, plain.request(length, length, 20));
  EXPECT_EQ(plain.worker->stats().prefix, PrefixStats{});
  for (const uint32_t chunk : {1u, 16u, 17u}) {
    Served served({.max_num_batched_tokens = chunk});
    for (const auto& [length, answer] : want) {
      uint32_t cached = 0;
      EXPECT_EQ(answer_of(served, served.request(length, length, 20), &cached), answer) << length;
      EXPECT_EQ(cached, 0u);
      EXPECT_EQ(answer_of(served, served.request(length, length, 20), &cached), answer) << length;
      EXPECT_EQ(cached, (length - 1) / 16 * 16);
    }
    const EngineStats stats = served.worker->stats();
    EXPECT_EQ(stats.kv_blocks_used, 0u);
    EXPECT_EQ(stats.prefix.queried_tokens, 2 * (1u + 15 + 16 + 17 + 31 + 32 + 33 + 100));
    EXPECT_EQ(stats.prefix.hit_tokens, 0u + 0 + 0 + 16 + 16 + 16 + 32 + 96);
    EXPECT_GT(stats.prefix.kept_blocks, 10u);
  }
}

TEST(AttentionWorkerPrefix, SaltsAndBypassesAreKept) {
  Served served;
  GenerationRequest request = served.request(1, 50, 4);
  uint32_t cached = 0;
  const Answer want = answer_of(served, request, &cached);
  request.cache_salt = "a";
  EXPECT_EQ(answer_of(served, request, &cached), want);
  EXPECT_EQ(cached, 0u);
  EXPECT_EQ(answer_of(served, request, &cached), want);
  EXPECT_EQ(cached, 48u);
  request.cache_salt = "b";
  EXPECT_EQ(answer_of(served, request, &cached), want);
  EXPECT_EQ(cached, 0u);
  request.cache_salt.clear();
  request.bypass_prefix_cache = true;
  EXPECT_EQ(answer_of(served, request, &cached), want);
  EXPECT_EQ(cached, 0u);
}

// Conversations: each turn's prompt is the one before, its answer, and more.
std::vector<Answer> talk(Served& served, uint64_t* cached_tokens = nullptr) {
  std::vector<Answer> answers;
  for (uint32_t talk = 0; talk < 3; ++talk) {
    GenerationRequest request = served.request(talk, 20 + talk * 7, 19);
    for (uint32_t turn = 0; turn < 4; ++turn) {
      uint32_t cached = 0;
      answers.push_back(answer_of(served, request, &cached));
      if (cached_tokens != nullptr) *cached_tokens += cached;
      const std::vector<int32_t>& said = answers.back().tokens;
      request.prompt.insert(request.prompt.end(), said.begin(), said.end());
      const GenerationRequest more = served.request(talk * 10 + turn, 5, 0);
      request.prompt.insert(request.prompt.end(), more.prompt.begin(), more.prompt.end());
    }
  }
  return answers;
}

TEST(AttentionWorkerPrefix, ConversationsGoOnFromTheirAnswers) {
  Served plain({.prefix_caching = false});
  const auto want = talk(plain);
  Served served;
  uint64_t cached = 0;
  EXPECT_EQ(talk(served, &cached), want);
  EXPECT_GT(cached, 3u * (32 + 48 + 80));
}

// With a drafter of rows, what it has seen is found too: it drafts as if it had seen the prompt.
TEST(AttentionWorkerPrefix, ADrafterGoesOnFromWhatItHasSeen) {
  const auto limits = [](bool caching) {
    return Served::Limits{.max_num_batched_tokens = 20,
                          .speculation = {2, false},
                          .fixture = "deepseek_v3_mtp",
                          .prefix_caching = caching};
  };
  Served plain(limits(false)), served(limits(true));
  uint64_t plain_accepted = 0;
  for (const uint32_t length : {17u, 33u, 50u, 90u}) {
    const auto counts = [&](Served& of, Answer& answer, uint32_t& cached) {
      const SpeculationStats before = of.worker->stats().speculation;
      answer = answer_of(of, of.request(length, length, 40), &cached);
      const SpeculationStats after = of.worker->stats().speculation;
      return std::pair(after.drafted - before.drafted, after.accepted - before.accepted);
    };
    Answer want, answer;
    uint32_t cached = 0;
    const auto expected = counts(plain, want, cached);
    plain_accepted += expected.second;
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(counts(served, answer, cached), expected) << length << " tokens, for time " << i;
      EXPECT_EQ(answer, want);
      EXPECT_EQ(cached, i == 0 ? 0 : (length - 1) / 16 * 16);
    }
  }
  EXPECT_GT(plain_accepted, 0u);
  EXPECT_EQ(talk(served), talk(plain));
}

TEST(AttentionWorkerPrefix, GroupsOfEveryKindGoOnFromTheirPoints) {
  const test::TestModel loaded = test::load_fixture("deepseek_v4", DType::bf16);
  grouped::Served alone(loaded, {.max_num_seqs = 1, .max_num_batched_tokens = 1, .prefix_caching = false});
  const auto want = alone.answer_all(true);
  for (const uint32_t lanes : {1u, 3u}) {
    grouped::Served served(loaded, {.max_num_seqs = 5,
                                    .max_num_batched_tokens = 50,
                                    .pool_tokens = lanes == 3 ? 640u : 0u,
                                    .lanes = {lanes, false, LaneSplit::by_token},
                                    .late = lanes == 3 ? std::optional(5u) : std::nullopt});
    EXPECT_EQ(served.answer_all(true), want);
    const uint64_t before = served.worker->stats().prefix.hit_tokens;
    EXPECT_EQ(served.answer_all(true), want);
    if (lanes == 1) {
      // The prompts of 129 and 260 tokens.
      EXPECT_EQ(served.worker->stats().prefix.hit_tokens - before, 128u + 256);
    }
  }
}

// gpt-oss: points are as close as blocks, and hold the window before them.
TEST(AttentionWorkerPrefix, WindowsGoOnFromTheirPoints) {
  const test::TestModel loaded = test::load_fixture("gpt_oss", DType::bf16);
  grouped::Served alone(loaded, {.max_num_seqs = 1, .max_num_batched_tokens = 1, .prefix_caching = false});
  const auto want = alone.answer_all(true);
  // Sequences enough that their windows' pool keeps all points.
  grouped::Served served(loaded, {.max_num_seqs = 40, .max_num_batched_tokens = 50});
  EXPECT_EQ(served.answer_all(true), want);
  EXPECT_EQ(served.worker->stats().prefix.hit_tokens, 0u);
  EXPECT_EQ(served.answer_all(true), want);
  EXPECT_EQ(served.worker->stats().prefix.hit_tokens, 112u + 112 + 0 + 16 + 112 + 128 + 256 + 0);
}

TEST(AttentionWorkerPrefix, BlocksAreDraftedBehindAPrefix) {
  const DsparkFixture files;
  const auto without = files.load(DType::bf16, /*drafts=*/false), model = files.load(DType::bf16);
  grouped::Served alone(without, {.max_num_seqs = 1, .max_num_batched_tokens = 1, .prefix_caching = false});
  const auto want = alone.answer_all(true);
  grouped::Served served(model, {.max_num_seqs = 5, .max_num_batched_tokens = 50, .num_drafts = 3});
  EXPECT_EQ(served.answer_all(true), want);
  EXPECT_EQ(served.worker->stats().prefix.hit_tokens, 0u);
  EXPECT_EQ(served.answer_all(true), want);
  EXPECT_EQ(served.worker->stats().prefix.hit_tokens, 128u + 256);
  EXPECT_GT(served.worker->stats().speculation.accepted, 0u);
}

// Many requests with beginnings in common, in a pool that is too small for them: some are cancelled, in every
// state, some stop early.
TEST(AttentionWorkerPrefix, ALongDayLeavesNothingBehind) {
  Served plain({.prefix_caching = false});
  const auto request_of = [](const Served& served, uint32_t kind) {
    GenerationRequest request = served.request(kind % 3, 70, 12 + kind % 9);
    const GenerationRequest own = served.request(100 + kind, 40, 1);
    request.prompt.resize(10 + (kind * 17) % 60);  // beginnings of three texts, and then their own
    request.prompt.insert(request.prompt.end(), own.prompt.begin(), own.prompt.begin() + kind % 20);
    return request;
  };
  std::vector<Answer> want;
  for (uint32_t kind = 0; kind < 30; ++kind) want.push_back(answer_of(plain, request_of(plain, kind)));
  uint64_t hits = 0, preempted = 0;
  for (const uint32_t lanes : {1u, 2u}) {
    Served served({.num_blocks = 16,
                   .max_num_seqs = 6,
                   .max_num_batched_tokens = 24,
                   .lanes = {lanes, false, LaneSplit::by_token},
                   .late = lanes == 2 ? std::optional(3u) : std::nullopt});
    std::mt19937 random(lanes);
    uint32_t completed = 0;
    for (uint32_t wave = 0; wave < 50; ++wave) {
      std::vector<std::pair<uint32_t, std::shared_ptr<Recorder>>> open;
      for (uint32_t i = 0; i < 10; ++i) {
        const auto kind = static_cast<uint32_t>(random() % want.size());
        RequestId id = 0;
        open.emplace_back(kind, served.submit(request_of(served, kind), &id));
        if (random() % 5 != 0) continue;
        if (random() % 2 == 0) open.back().second->wait_for_tokens(random() % 4);
        served.worker->cancel(id);
      }
      for (const auto& [kind, recorder] : open) {
        const Finish finish = recorder->wait();
        if (finish.reason == FinishReason::cancelled) continue;
        ++completed;
        ASSERT_EQ((Answer{recorder->tokens(), finish.logits_hash}), want[kind]) << kind;
      }
      const EngineStats stats = served.worker->stats();
      ASSERT_EQ(stats.kv_blocks_used + stats.running + stats.waiting, 0u);
    }
    EXPECT_GT(completed, 300u);
    hits += served.worker->stats().prefix.hit_tokens;
    preempted += served.worker->stats().preempted;
  }
  EXPECT_GT(hits, 1000u);
  EXPECT_GT(preempted, 0u);
}

}  // namespace
}  // namespace tandem
