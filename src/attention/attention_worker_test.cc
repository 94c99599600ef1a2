#include "attention/attention_worker.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <future>
#include <random>
#include <thread>

#include "attention/attention_worker_served.h"
#include "attention/dead_time.h"

namespace tandem {
namespace {

using namespace test;

TEST(AttentionWorker, BatchChunksLanesAndPreemptionChangeNoBit) {
  Served alone;
  const auto want = answer_all(alone, true);
  Served batched;
  EXPECT_EQ(answer_all(batched, false), want);
  EXPECT_GT(batched.worker->stats().mixed_steps, 0u);
  // 9 blocks are 144 tokens: the longest request needs 98, so sequences push each other out all the time.
  Served tight({.num_blocks = 9, .max_num_seqs = 5, .max_num_batched_tokens = 11});
  // Who is pushed out, and whether anybody is, depends on when requests arrive.
  for (int i = 0; i < 20 && tight.worker->stats().preempted == 0; ++i)
    EXPECT_EQ(answer_all(tight, false), want);
  EXPECT_GT(tight.worker->stats().preempted, 0u);
  EXPECT_GT(tight.worker->stats().mixed_steps, 0u);
}

// Any number of lanes, either split, replies in any order, sequences that push each other out and others that
// are cancelled on the way: those that are not have the bits of running alone.
TEST(AttentionWorker, LanesChangeNoBit) {
  Served alone;
  const auto want = answer_all(alone, true);
  size_t most_waiting = 0;
  for (const LaneSplit split : {LaneSplit::by_request, LaneSplit::by_token}) {
    for (const uint32_t lanes : {1u, 2u, 3u, 5u, 8u}) {
      const uint32_t seed = lanes * 2 + static_cast<uint32_t>(split);
      Served served({.num_blocks = lanes % 2 == 0 ? 400u : 12u,
                     .max_num_seqs = 7,
                     .max_num_batched_tokens = 21,
                     .lanes = {lanes, false, split},
                     .late = seed});
      std::mt19937 random(seed);
      std::vector<std::shared_ptr<Recorder>> cancelled;
      for (uint32_t i = 0; i < 6; ++i) {
        RequestId id = 0;
        cancelled.push_back(served.submit(served.request(100 + i, 1 + random() % 60, 30), &id));
        if (i % 2 == 0) cancelled.back()->wait_for_tokens(random() % 3);
        served.worker->cancel(id);
      }
      EXPECT_EQ(answer_all(served, false), want) << lanes << " lanes, split " << static_cast<int>(split);
      for (const auto& recorder : cancelled) recorder->wait();
      most_waiting = std::max(most_waiting, served.late->most_waiting.load());
      EXPECT_EQ(served.worker->stats().mixed_steps, 0u)
          << "rows that wait for experts leave prompts the time";
    }
  }
  EXPECT_GE(most_waiting, 8u) << "lanes never waited beside each other";
}

// Recording changes no bit, and whatever lanes do to each other, the recorded time adds up.
TEST(AttentionWorker, ATraceChangesNoBitAndAddsUp) {
  Served alone;
  const auto want = answer_all(alone, true);
  for (const uint32_t lanes : {1u, 3u}) {
    TraceRing ring(1 << 20);
    ring.ask();
    {
      Served served({.num_blocks = 12,
                     .max_num_seqs = 7,
                     .max_num_batched_tokens = 21,
                     .lanes = {lanes, false, LaneSplit::by_token},
                     .late = lanes,
                     .trace = &ring});
      EXPECT_EQ(answer_all(served, false), want);
    }
    EXPECT_EQ(ring.dropped(), 0u);
    const DeadTime time = account_dead_time(ring.events());
    EXPECT_EQ(time.rank.total(), time.wall_ns());
    EXPECT_GT(time.rank.attention, 0);
    EXPECT_GT(time.rank.experts, 0);
    EXPECT_GT(time.exchanges, 0u);
    // Between two turns of the loop nothing is; a machine that takes the CPU away may be anywhere else.
    EXPECT_LT(time.rank.unaccounted, time.wall_ns() / 50);
    ASSERT_EQ(time.lanes.size(), 2 * lanes) << "as many for prompts";
    for (const LaneTime& lane : time.lanes) EXPECT_EQ(lane.parts.total(), time.wall_ns());
  }
}

TEST(AttentionWorker, AutomaticLanesChangeNoBitAndBeginWithOne) {
  Served alone;
  const auto want = answer_all(alone, true);
  Served served({.max_num_seqs = 6, .lanes = {4, true, LaneSplit::by_token}, .late = 3});
  EXPECT_EQ(served.worker->stats().decode_lanes, 1u);
  EXPECT_EQ(answer_all(served, false), want);
  // Experts in this process cannot overlap: whatever is measured, one lane stays.
  Served in_place({.lanes = {4, true, LaneSplit::by_request}});
  EXPECT_EQ(answer_all(in_place, false), want);
  EXPECT_EQ(in_place.worker->stats().decode_lanes, 1u);
}

TEST(AttentionWorker, RequestsThatCannotFitAreRefusedAndThoseThatFillThePoolEnd) {
  Served served({.num_blocks = 9, .max_context = 200});
  EXPECT_NE(served.refusal(served.request(1, 145, 4)).find("145 tokens do not fit the KV pool of 144"),
            std::string::npos);
  EXPECT_NE(served.refusal(served.request(1, 200, 4))
                .find("200 tokens leave no room for an answer in a context of 200"),
            std::string::npos);
  const auto fills = served.submit(served.request(1, 144, 50));
  const auto after = served.submit(served.request(2, 3, 4));
  Finish finish = fills->wait();
  EXPECT_EQ(finish.reason, FinishReason::length);
  EXPECT_EQ(finish.completion_tokens, 1u);
  finish = served.submit(served.request(3, 140, 50))->wait();
  EXPECT_EQ(finish.reason, FinishReason::length);
  EXPECT_EQ(finish.completion_tokens, 5u);  // 144 tokens in the cache, and one that needs none
  EXPECT_EQ(after->wait().completion_tokens, 4u);
}

TEST(AttentionWorker, TheContextLimitEndsAnAnswer) {
  Served served({.max_context = 30});
  const Finish finish = served.submit(served.request(1, 25, 100))->wait();
  EXPECT_EQ(finish.reason, FinishReason::length);
  EXPECT_EQ(finish.completion_tokens, 5u);
}

TEST(AttentionWorker, EveryRequestWaitsOnceAndEveryRowIsCounted) {
  // 9 blocks: sequences push each other out, and wait in the queue again.
  Served tight({.num_blocks = 9, .max_num_seqs = 5, .max_num_batched_tokens = 11, .prefix_caching = false});
  uint64_t runs = 0;
  for (; runs == 0 || (runs < 20 && tight.worker->stats().preempted == 0); ++runs) answer_all(tight, false);
  const EngineStats stats = tight.worker->stats();
  EXPECT_GT(stats.preempted, 0u);
  uint64_t waited = 0;
  for (const uint64_t count : stats.queue.counts) waited += count;
  EXPECT_EQ(waited, 12 * runs);
  EXPECT_GT(stats.queue.seconds, 0.0);
  EXPECT_EQ(stats.batch.decode_steps + stats.batch.prefill_steps, stats.steps + stats.mixed_steps);
  EXPECT_GE(stats.batch.decode_rows, stats.batch.decode_steps);
  EXPECT_GE(stats.batch.prefill_rows, stats.batch.prefill_steps);
  // All prompts and all but the last token of each answer, and again what was pushed out.
  EXPECT_GT(stats.batch.prefill_rows + stats.batch.decode_rows,
            stats.prompt_tokens + stats.generated_tokens - 12 * runs);
}

TEST(AttentionWorker, ReasoningEndsWithItsBudget) {
  Served plain;
  Prophet prophet(0.7, 3);
  GenerationRequest request = plain.request(5, 10, 30);
  const auto free = plain.submit(request);
  free->wait();
  // A token that the model does not say by itself.
  int32_t end = 0;
  while (std::ranges::count(free->tokens(), end) > 0) ++end;
  GrammarSpec& spec = request.sampling.grammar;
  spec = {.reasoning_end = end, .in_reasoning = true, .reasoning_budget = 7};
  const auto bounded = plain.submit(request);
  EXPECT_EQ(bounded->wait().completion_tokens, 30u);
  const std::vector<int32_t> said = bounded->tokens();
  EXPECT_TRUE(std::equal(said.begin(), said.begin() + 7, free->tokens().begin()));
  EXPECT_EQ(said[7], end);
  prophet.learn(request.prompt, said);
  Served drafting({.speculation = {3, false}, .drafter = &prophet});
  const auto drafted = drafting.submit(request);
  drafted->wait();
  EXPECT_EQ(drafted->tokens(), said);
  EXPECT_GT(drafting.worker->stats().speculation.accepted, 0u);
  spec.in_reasoning = false;  // an answer that does not reason
  spec.reasoning_begin = end;
  const auto without = plain.submit(request);
  without->wait();
  EXPECT_EQ(without->tokens(), free->tokens());
}

TEST(AttentionWorker, BadRequestsAreRefusedByName) {
  Served served;
  GenerationRequest request = served.request(1, 4, 4);
  request.prompt.clear();
  EXPECT_NE(served.refusal(request).find("no tokens"), std::string::npos);
  for (int32_t bad : {-1, static_cast<int32_t>(served.config.vocab_size), INT32_MAX}) {
    request.prompt = {1, bad};
    EXPECT_NE(served.refusal(request).find("token id " + std::to_string(bad)), std::string::npos);
  }
  request = served.request(1, 4, 4);
  request.sampling.logit_bias = {{static_cast<int32_t>(served.config.vocab_size), 1.0f}};
  EXPECT_NE(served.refusal(request).find("logit_bias"), std::string::npos);
}

TEST(AttentionWorker, StopTokensEndWhereTheyShould) {
  Served plain;
  const auto reference = plain.submit(plain.request(5, 10, 12));
  reference->wait();
  const std::vector<int32_t> tokens = reference->tokens();
  const int32_t stop = tokens[4];
  const auto first = static_cast<size_t>(std::find(tokens.begin(), tokens.end(), stop) - tokens.begin());

  GenerationRequest request = plain.request(5, 10, 12);
  request.sampling.stop_token_ids = {stop};
  auto recorder = plain.submit(request);
  EXPECT_EQ(recorder->wait().reason, FinishReason::stop);
  EXPECT_EQ(recorder->tokens(),
            std::vector<int32_t>(tokens.begin(), tokens.begin() + static_cast<long>(first) + 1));

  request.sampling.min_tokens = 12;
  recorder = plain.submit(request);
  EXPECT_EQ(recorder->wait().reason, FinishReason::length);
  const auto unstopped = recorder->tokens();
  EXPECT_EQ(std::count(unstopped.begin(), unstopped.end(), stop), 0);

  Served with_eos({.eos = {stop}});
  recorder = with_eos.submit(with_eos.request(5, 10, 12));
  EXPECT_EQ(recorder->wait().reason, FinishReason::stop);
  EXPECT_EQ(recorder->tokens().back(), stop);
  request = with_eos.request(5, 10, 12);
  request.sampling.ignore_eos = true;
  recorder = with_eos.submit(request);
  recorder->wait();
  EXPECT_EQ(recorder->tokens(), tokens);
}

TEST(AttentionWorker, CancelsInEveryStateGiveEverythingBack) {
  Served served({.num_blocks = 20, .max_num_seqs = 4, .max_num_batched_tokens = 16});
  std::mt19937 random(2);
  std::vector<std::pair<RequestId, std::shared_ptr<Recorder>>> open;
  for (int i = 0; i < 120; ++i) {
    RequestId id = 0;
    auto recorder = served.submit(
        served.request(static_cast<uint32_t>(i), 1 + static_cast<uint32_t>(random() % 100), 30), &id);
    open.emplace_back(id, recorder);
    if (random() % 2 == 0) recorder->wait_for_tokens(random() % 3);  // queued, in prefill, or decoding
    const auto& [victim, ignored] = open[random() % open.size()];
    served.worker->cancel(victim);  // may have ended long ago: no matter
  }
  for (const auto& [id, recorder] : open) served.worker->cancel(id);
  uint64_t cancelled = 0;
  for (const auto& [id, recorder] : open)
    cancelled += recorder->wait().reason == FinishReason::cancelled ? 1 : 0;
  const EngineStats stats = served.worker->stats();
  EXPECT_GT(cancelled, 0u);
  EXPECT_EQ(stats.cancelled, cancelled);
  EXPECT_EQ(stats.cancelled + stats.finished, 120u);
  EXPECT_EQ(stats.kv_blocks_used, 0u);
  EXPECT_EQ(stats.running + stats.waiting, 0u);
  served.worker->cancel(999999);  // unknown
  EXPECT_EQ(served.submit(served.request(1, 5, 3))->wait().completion_tokens, 3u);
}

// Whoever looks at the counter sees answers that go on, not only those that have ended.
TEST(AttentionWorker, TokensAreCountedAsTheyAreGenerated) {
  struct Looking final : GenerationSink {
    void on_token(const TokenEvent& event) override {
      if (event.index == 5) counted = engine->stats().generated_tokens;
    }
    void on_finish(const Finish&) override { done.set_value(); }
    Engine* engine = nullptr;
    uint64_t counted = 0;
    std::promise<void> done;
  };
  Served served;
  const auto sink = std::make_shared<Looking>();
  sink->engine = served.worker.get();
  ASSERT_TRUE(served.worker->submit(served.request(1, 10, 8), sink));
  sink->done.get_future().wait();
  EXPECT_GE(sink->counted, 4u);
  EXPECT_LE(sink->counted, 6u);
  EXPECT_EQ(served.worker->stats().generated_tokens, 8u);
}

TEST(AttentionWorker, ALostPeerEndsEveryRequestByNameAndComesBack) {
  Served served({.max_num_seqs = 2, .max_context = 6000});
  const Answer want = [&] {
    auto recorder = served.submit(served.request(9, 10, 8));
    const Finish finish = recorder->wait();
    return Answer{recorder->tokens(), finish.logits_hash};
  }();
  const auto open = served.submit_and_lose(5000, 2);  // running and waiting
  for (const auto& recorder : open) {
    const Finish finish = recorder->wait();
    ASSERT_EQ(finish.reason, FinishReason::error);
    EXPECT_EQ(finish.error.code, ErrorCode::unavailable);
    EXPECT_EQ(finish.error.message, LosablePort::kReason);
  }
  const Instant end = now() + std::chrono::seconds(30);
  while (served.worker->health().has_value() && now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  ASSERT_FALSE(served.worker->health().has_value());
  EXPECT_EQ(served.refusal(served.request(1, 5, 3)), LosablePort::kReason);
  EXPECT_EQ(served.worker->stats().kv_blocks_used, 0u);

  served.port->lost = false;
  while (!served.worker->health().has_value() && now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  auto recorder = served.submit(served.request(9, 10, 8));
  const Finish finish = recorder->wait();
  EXPECT_EQ((Answer{recorder->tokens(), finish.logits_hash}), want);
}

// A long prompt comes along with the steps of the answer beside it, or is interrupted between operations.
TEST(AttentionWorker, ALongPromptDoesNotHoldDecodeUp) {
  Served alone({.num_blocks = 800, .max_num_batched_tokens = 3000, .max_context = 6000});
  const GenerationRequest talk = alone.request(1, 10, 5000), prompt = alone.request(2, 3000, 2);
  const auto want = alone.submit(prompt);
  const uint64_t hash = want->wait().logits_hash;
  Served served({.num_blocks = 800, .max_num_batched_tokens = 3000, .max_context = 6000});
  RequestId id = 0;
  const auto talking = std::make_shared<Recorder>(), reading = std::make_shared<Recorder>();
  size_t said = 0;  // when the prompt had been read
  talking->at_token(3, [&] { served.submit(prompt, reading); });
  reading->at_token(1, [&] { said = talking->tokens().size(); });
  served.submit(talk, talking, &id);
  EXPECT_EQ(reading->wait().logits_hash, hash);
  EXPECT_GE(said, 3u + 5u);
  served.worker->cancel(id);
  talking->wait();
}

TEST(AttentionWorker, DeadlinesEndRequestsWhereverTheyWait) {
  // The prompt's rows in steps of two: a deadline falls between them.
  Served served({.num_blocks = 800, .max_num_seqs = 1, .max_num_batched_tokens = 2, .max_context = 6000});
  RequestId id = 0;
  const auto runs = served.submit(served.request(1, 10, 5000), &id);
  GenerationRequest late = served.request(2, 10, 5);
  late.deadline = now() + std::chrono::milliseconds(1);
  const Finish finish = served.submit(late)->wait();
  EXPECT_EQ(finish.reason, FinishReason::error);
  EXPECT_EQ(finish.error.code, ErrorCode::resource_exhausted) << "it never left the queue";
  EXPECT_TRUE(finish.error.message.starts_with("the request has waited in the queue for "))
      << finish.error.message;
  EXPECT_EQ(finish.completion_tokens, 0u);
  late.deadline = Instant::max();
  late.queue_deadline = now() + std::chrono::milliseconds(1);
  EXPECT_EQ(served.submit(late)->wait().error.code, ErrorCode::resource_exhausted);
  uint64_t overdue = 2;
  // How long it takes until a request has begun is the machine's affair: its time is doubled until it has.
  const auto end_in_its_midst = [&](GenerationRequest request) {
    request.priority = -1;  // takes the place
    for (Duration time = std::chrono::milliseconds(5);; time *= 2) {
      request.deadline = now() + time;
      request.queue_deadline = now() + time / 2;  // kept: it has a place at once
      const Finish end = served.submit(request)->wait();
      ++overdue;
      if (end.error.code != ErrorCode::resource_exhausted) return end;
    }
  };
  const Finish ended = end_in_its_midst(served.request(3, 10, 5000));
  EXPECT_EQ(ended.error.code, ErrorCode::deadline_exceeded);
  EXPECT_NE(ended.error.message.find(std::to_string(ended.completion_tokens) + " tokens were generated"),
            std::string::npos)
      << ended.error.message;
  EXPECT_EQ(served.worker->stats().overdue, overdue);
  EXPECT_EQ(served.worker->stats().failed, overdue);
  const Finish read = end_in_its_midst(served.request(4, 5900, 5));
  EXPECT_EQ(read.error.code, ErrorCode::deadline_exceeded);
  EXPECT_EQ(read.completion_tokens, 0u);
  served.worker->cancel(id);
  // It may have come to its end where the machine holds this thread up.
  if (runs->wait().reason == FinishReason::cancelled) {
    EXPECT_GE(served.worker->stats().preempted, 1u);
  }
  EXPECT_EQ(served.worker->stats().kv_blocks_used, 0u);
}

TEST(AttentionWorker, AFullQueueIsRefusedAndStoppingEndsWhatIsOpen) {
  std::vector<std::shared_ptr<Recorder>> open;
  {
    Served served({.max_num_seqs = 1, .max_queue = 5});
    Result<RequestId> result = RequestId{0};
    for (int i = 0; i < 40 && result; ++i) {
      open.push_back(std::make_shared<Recorder>());
      result = served.worker->submit(served.request(1, 30, 150), open.back());
    }
    ASSERT_FALSE(result.has_value());
    EXPECT_EQ(result.error().code, ErrorCode::resource_exhausted);
    open.pop_back();
  }
  for (const auto& recorder : open) {
    const FinishReason reason = recorder->wait().reason;
    EXPECT_TRUE(reason == FinishReason::cancelled || reason == FinishReason::length);
  }
}

}  // namespace
}  // namespace tandem
