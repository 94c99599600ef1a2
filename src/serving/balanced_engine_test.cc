#include "serving/balanced_engine.h"

#include <gtest/gtest.h>

#include <numeric>

#include "serving/recording_sink.h"
#include "serving/scripted_engine.h"

namespace tandem {
namespace {

class BalancedEngineTest : public ::testing::Test {
 protected:
  void start(size_t count, bool free_running = true, uint32_t max_queue = 64) {
    std::vector<BalancedEngine::Rank> ranks;
    for (size_t i = 0; i < count; ++i) {
      ScriptedEngineOptions options;
      options.limits = {.max_context_tokens = 4096 + static_cast<uint32_t>(i),
                        .kv_pool_tokens = 16 * 1024,
                        .vocab_size = 3000,
                        .max_num_seqs = 8,
                        .max_queue = max_queue};
      options.free_running = free_running;
      options.eos_token_ids = {1};
      options.script = [](const GenerationRequest& request) { return request.prompt; };
      auto engine = std::make_unique<ScriptedEngine>(options);
      scripted_.push_back(engine.get());
      ranks.push_back({"rank " + std::to_string(i), std::move(engine)});
    }
    engine_ = std::make_unique<BalancedEngine>(std::move(ranks));
  }
  static GenerationRequest ask(size_t prompt, int32_t first, uint32_t max_tokens = 2) {
    GenerationRequest request;
    request.prompt.resize(prompt);
    std::iota(request.prompt.begin(), request.prompt.end(), first);
    request.sampling.max_tokens = max_tokens;
    return request;
  }
  Finish run(const GenerationRequest& request) {
    const auto sink = std::make_shared<RecordingSink>();
    const auto id = engine_->submit(request, sink);
    EXPECT_TRUE(id) << id.error().message;
    return sink->wait();
  }
  size_t count(size_t rank) { return scripted_[rank]->requests().size(); }

  std::vector<ScriptedEngine*> scripted_;
  std::unique_ptr<BalancedEngine> engine_;
};

TEST_F(BalancedEngineTest, SpreadsWhatHasNothingInCommon) {
  start(3);
  for (int i = 0; i < 30; ++i) EXPECT_EQ(run(ask(10, 2 + i)).reason, FinishReason::length);
  for (size_t rank = 0; rank < 3; ++rank) EXPECT_EQ(count(rank), 10u);
}

TEST_F(BalancedEngineTest, GoesWhereThePrefixIs) {
  start(3);
  run(ask(200, 5));
  const size_t home = count(0) == 1 ? 0 : count(1) == 1 ? 1 : 2;
  for (int i = 0; i < 5; ++i) run(ask(200, 5));
  EXPECT_EQ(count(home), 6u);
  run(ask(200, 1000));
  EXPECT_EQ(count(home), 6u) << "another prompt goes to a rank that was idle longer";
}

TEST_F(BalancedEngineTest, TwoHundredToOneRankAndThenOneToTheOther) {
  start(2);
  scripted_[1]->lose_peer({ErrorCode::unavailable, "FFN rank 0 is gone"});
  for (int i = 0; i < 200; ++i) EXPECT_EQ(run(ask(70, 5)).reason, FinishReason::length);
  EXPECT_EQ(count(0), 200u);
  EXPECT_EQ(count(1), 0u) << "a rank that is not ready gets nothing";
  scripted_[1]->heal();
  scripted_[0]->lose_peer({ErrorCode::unavailable, "FFN rank 0 is gone"});
  EXPECT_EQ(run(ask(70, 5)).reason, FinishReason::length);
  EXPECT_EQ(count(1), 1u);
}

TEST_F(BalancedEngineTest, ServesWhileOneServes) {
  start(2);
  EXPECT_TRUE(engine_->health());
  scripted_[0]->lose_peer({ErrorCode::unavailable, "zero is gone"});
  EXPECT_TRUE(engine_->health());
  const auto ranks = engine_->ranks();
  ASSERT_EQ(ranks.size(), 2u);
  EXPECT_EQ(ranks[0].name, "rank 0");
  EXPECT_EQ(ranks[0].health.error().message, "zero is gone");
  EXPECT_TRUE(ranks[1].health);
  EXPECT_EQ(run(ask(10, 5)).reason, FinishReason::length);
  scripted_[1]->lose_peer({ErrorCode::unavailable, "one is gone"});
  ASSERT_FALSE(engine_->health());
  EXPECT_EQ(engine_->health().error().message, "no attention rank serves: zero is gone; one is gone");
  const auto refused = engine_->submit(ask(10, 5), std::make_shared<RecordingSink>());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::unavailable);
}

TEST_F(BalancedEngineTest, TheLoadOfOpenRequestsCounts) {
  start(2, false);
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  for (int i = 0; i < 6; ++i) {  // one large, then small ones: they go to the other rank
    sinks.push_back(std::make_shared<RecordingSink>());
    ASSERT_TRUE(engine_->submit(ask(i == 0 ? 300 : 50, 2 + 300 * i), sinks.back()));
  }
  EXPECT_EQ(count(0) + count(1), 6u);
  EXPECT_EQ(std::max(count(0), count(1)), 5u);
  for (ScriptedEngine* rank : scripted_) rank->step(3);
  for (const auto& sink : sinks) EXPECT_EQ(sink->wait().reason, FinishReason::length);
}

TEST_F(BalancedEngineTest, AllQueuesFullIsResourceExhausted) {
  start(2, false, 2);
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  for (int i = 0; i < 4; ++i) {
    sinks.push_back(std::make_shared<RecordingSink>());
    ASSERT_TRUE(engine_->submit(ask(10, 2 + i), sinks.back())) << i;
  }
  const auto full = engine_->submit(ask(10, 2), std::make_shared<RecordingSink>());
  ASSERT_FALSE(full);
  EXPECT_EQ(full.error().code, ErrorCode::resource_exhausted);
  EXPECT_NE(full.error().message.find("2 ranks"), std::string::npos);
  EXPECT_EQ(engine_->stats().waiting, 4u) << "stats are sums";
  for (ScriptedEngine* rank : scripted_) rank->step(3);
  for (const auto& sink : sinks) sink->wait();
  EXPECT_EQ(engine_->stats().finished, 4u);
  EXPECT_EQ(engine_->stats().kv_blocks_total, 2048u);
}

TEST_F(BalancedEngineTest, CancelGoesToTheRightRank) {
  start(3, false);
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  std::vector<RequestId> ids;
  for (int i = 0; i < 3; ++i) {
    sinks.push_back(std::make_shared<RecordingSink>());
    ids.push_back(*engine_->submit(ask(10, 2 + i, 100), sinks.back()));
  }
  engine_->cancel(ids[1]);
  EXPECT_EQ(scripted_[0]->cancels() + scripted_[0]->late_cancels(), 0);
  EXPECT_EQ(scripted_[1]->cancels(), 1);
  EXPECT_EQ(scripted_[2]->cancels() + scripted_[2]->late_cancels(), 0);
  for (ScriptedEngine* rank : scripted_) rank->step(1);
  EXPECT_EQ(sinks[1]->wait().reason, FinishReason::cancelled);
  EXPECT_FALSE(sinks[0]->finished());
}

TEST_F(BalancedEngineTest, LimitsAreTheSmallest) {
  start(3);
  EXPECT_EQ(engine_->limits().max_context_tokens, 4096u);
  const auto refused = engine_->submit(ask(4096, 0), std::make_shared<RecordingSink>());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::invalid_argument);
}

}  // namespace
}  // namespace tandem
