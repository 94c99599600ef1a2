// RemoteEngine against EngineServer over every transport, with a scripted engine behind it.
#include "serving/remote_engine.h"

#include <future>

#include "serving/engine_front.h"
#include "serving/remote_engine_fixture.h"

namespace tandem {
namespace {

TEST_P(RemoteEngineTest, AnswersAsTheEngineItself) {
  start();
  const auto remote = connect();
  EXPECT_EQ(remote->limits().max_context_tokens, 200'000u);
  EXPECT_EQ(remote->limits().max_queue, 64u);
  GenerationRequest request = ask({5, 6, 7}, 10);
  request.sampling.top_logprobs = 3;
  request.sampling.prompt_logprobs = 2;
  const auto direct = std::make_shared<RecordingSink>(), over = std::make_shared<RecordingSink>();
  ASSERT_TRUE(engine_->submit(request, direct));
  ASSERT_TRUE(remote->submit(request, over));
  const Finish a = direct->wait(), b = over->wait();
  EXPECT_EQ(a.reason, b.reason);
  EXPECT_EQ(a.prompt_tokens, b.prompt_tokens);
  EXPECT_EQ(a.completion_tokens, b.completion_tokens);
  ASSERT_EQ(direct->tokens(), over->tokens());
  ASSERT_EQ(over->tokens().size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(direct->events()[i].logprob, over->events()[i].logprob);
    ASSERT_EQ(over->events()[i].top_logprobs.size(), 3u);
    EXPECT_EQ(direct->events()[i].top_logprobs[2].token, over->events()[i].top_logprobs[2].token);
    EXPECT_EQ(direct->events()[i].top_logprobs[2].logprob, over->events()[i].top_logprobs[2].logprob);
  }
  ASSERT_EQ(over->prompt().size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    const TokenEvent x = direct->prompt()[i], y = over->prompt()[i];
    EXPECT_EQ(x.token, y.token);
    EXPECT_EQ(x.index, y.index);
    EXPECT_EQ(x.rank, y.rank);
    EXPECT_EQ(x.logprob, y.logprob);
    ASSERT_EQ(y.top_logprobs.size(), 2u);
    EXPECT_EQ(x.top_logprobs[1].logprob, y.top_logprobs[1].logprob);
  }
  EXPECT_TRUE(eventually([&] { return remote->stats().finished == engine_->stats().finished; }));
  EXPECT_EQ(remote->stats().kv_blocks_total, engine_->stats().kv_blocks_total);
}

TEST_P(RemoteEngineTest, LongPromptsTravelInParts) {
  start();
  const auto remote = connect();
  std::vector<int32_t> prompt(150'000);  // nine slots and more
  for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<int32_t>(2 + i % 290);
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  for (int i = 0; i < 3; ++i) {
    sinks.push_back(std::make_shared<RecordingSink>());
    ASSERT_TRUE(remote->submit(ask(prompt, 20), sinks.back()));
  }
  for (const auto& sink : sinks) {
    EXPECT_EQ(sink->wait().prompt_tokens, prompt.size());
    EXPECT_EQ(sink->tokens(), std::vector<int32_t>(prompt.begin(), prompt.begin() + 20));
  }
}

TEST_P(RemoteEngineTest, ManyRequestsFromManyThreads) {
  start();
  const auto remote = connect();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 15; ++i) {
        const auto sink = std::make_shared<RecordingSink>();
        const std::vector<int32_t> prompt = {10 + t, 20 + i, 30};
        ASSERT_TRUE(remote->submit(ask(prompt, 3), sink));
        EXPECT_EQ(sink->wait().reason, FinishReason::length);
        EXPECT_EQ(sink->tokens(), prompt);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(engine_->wait_idle());
}

TEST_P(RemoteEngineTest, CancelReachesTheEngine) {
  start(scripted(false));
  const auto remote = connect();
  const auto stays = std::make_shared<RecordingSink>(), goes = std::make_shared<RecordingSink>();
  ASSERT_TRUE(remote->submit(ask({5, 6, 7}, 3), stays));
  const auto id = remote->submit(ask({8, 9}, 100), goes);
  ASSERT_TRUE(id);
  ASSERT_TRUE(eventually([&] { return engine_->requests().size() == 2; }));
  engine_->step();
  EXPECT_TRUE(goes->wait_for_tokens(1));
  remote->cancel(*id);
  ASSERT_TRUE(eventually([&] { return engine_->cancels() == 1; }));
  engine_->step(4);
  EXPECT_EQ(goes->wait().reason, FinishReason::cancelled);
  EXPECT_EQ(stays->wait().reason, FinishReason::length);
  remote->cancel(*id);  // it has ended: nothing happens
  remote->cancel(12345);
}

TEST_P(RemoteEngineTest, BadRequestsAreRefusedAtOnceAndFullQueuesByTheRank) {
  ScriptedEngineOptions options = scripted(false);
  options.limits.max_num_seqs = 1;
  options.limits.max_queue = 2;
  start(options);
  const auto remote = connect();
  const auto sink = std::make_shared<RecordingSink>();
  EXPECT_NE(remote->submit(ask({}, 3), sink).error().message.find("prompt"), std::string::npos);
  EXPECT_NE(remote->submit(ask({300}, 3), sink).error().message.find("token id 300"), std::string::npos);
  EXPECT_FALSE(sink->finished());
  // The scripted engine starts none of them: two wait, and the third finds the queue full on the rank itself.
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  for (int i = 0; i < 3; ++i) {
    sinks.push_back(std::make_shared<RecordingSink>());
    ASSERT_TRUE(remote->submit(ask({5}, 1), sinks.back()));
  }
  const Finish full = sinks[2]->wait();
  EXPECT_EQ(full.reason, FinishReason::error);
  EXPECT_EQ(full.error.code, ErrorCode::resource_exhausted);
  engine_->step(4);
  EXPECT_EQ(sinks[0]->wait().reason, FinishReason::length);
  EXPECT_EQ(sinks[1]->wait().reason, FinishReason::length);
}

TEST_P(RemoteEngineTest, HealthTravelsAndARankThatIsDegradedGetsNothing) {
  start();
  const auto remote = connect();
  engine_->lose_peer({ErrorCode::unavailable, "FFN rank 1 at tcp://b:7000: connection closed"});
  ASSERT_TRUE(eventually([&] { return !remote->health(); }));
  EXPECT_NE(remote->health().error().message.find("attention rank 0 at"), std::string::npos);
  EXPECT_NE(remote->health().error().message.find("FFN rank 1 at tcp://b:7000"), std::string::npos);
  const auto refused = remote->submit(ask({5}, 1), std::make_shared<RecordingSink>());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::unavailable);
  engine_->heal();
  ASSERT_TRUE(eventually([&] { return remote->health().has_value(); }));
  const auto sink = std::make_shared<RecordingSink>();
  ASSERT_TRUE(remote->submit(ask({5}, 1), sink));
  EXPECT_EQ(sink->wait().reason, FinishReason::length);
}

TEST_P(RemoteEngineTest, ALostRankEndsItsRequestsByNameAndIsTakenBack) {
  start(scripted(false));
  const auto remote = connect();
  const auto sink = std::make_shared<RecordingSink>();
  ASSERT_TRUE(remote->submit(ask({5, 6}, 100), sink));
  ASSERT_TRUE(eventually([&] { return engine_->requests().size() == 1; }));
  server_.reset();
  const Finish end = sink->wait();
  EXPECT_EQ(end.reason, FinishReason::error);
  EXPECT_EQ(end.error.code, ErrorCode::unavailable);
  EXPECT_NE(end.error.message.find("attention rank 0 at " + address_), std::string::npos)
      << end.error.message;
  EXPECT_FALSE(remote->health());
  EXPECT_EQ(remote->stats().running, 0u);
  EXPECT_FALSE(remote->submit(ask({5}, 1), std::make_shared<RecordingSink>()));
  engine_ = std::make_unique<ScriptedEngine>(scripted());
  serve();
  ASSERT_TRUE(eventually([&] { return remote->health().has_value(); })) << remote->waiting_for();
  const auto again = std::make_shared<RecordingSink>();
  ASSERT_TRUE(remote->submit(ask({5, 6}, 2), again));
  EXPECT_EQ(again->wait().reason, FinishReason::length);
  EXPECT_EQ(remote->connections(), 2u);
}

// What a front adds up must never fall: that would look like a restart, and count everything again.
TEST_P(RemoteEngineTest, TotalsOutliveTheRank) {
  start();
  const auto remote = connect();
  const auto run = [&] {
    const auto sink = std::make_shared<RecordingSink>();
    const auto id = remote->submit(ask({5, 6}, 2), sink);
    ASSERT_TRUE(id) << id.error().message;
    sink->wait();
  };
  const auto counts = [&](uint64_t finished) {
    return eventually([&] { return remote->stats().finished == finished; }) &&
           remote->stats().generated_tokens == 2 * finished && remote->stats().kv_blocks_total <= 1u << 18;
  };
  run();
  ASSERT_TRUE(counts(1));
  EngineServerOptions same = server_options();
  server_.reset();
  ASSERT_TRUE(eventually([&] { return !remote->health(); }));
  EXPECT_TRUE(counts(1)) << "lost";
  EXPECT_EQ(remote->stats().kv_blocks_total, 0u);
  engine_ = std::make_unique<ScriptedEngine>(scripted());
  serve(same);
  ASSERT_TRUE(eventually([&] { return remote->health().has_value(); }));
  EXPECT_TRUE(counts(1)) << "another process";
  run();
  ASSERT_TRUE(counts(2));
  server_.reset();  // a connection that breaks: the process is the same, and so are its counts
  serve(same);
  ASSERT_TRUE(eventually([&] { return remote->connections() == 3; }));
  EXPECT_TRUE(counts(2));
  run();
  EXPECT_TRUE(counts(3));
}

TEST_P(RemoteEngineTest, ARankThatStopsLetsOpenRequestsEnd) {
  start(scripted(false));
  const auto remote = connect();
  const auto sink = std::make_shared<RecordingSink>();
  ASSERT_TRUE(remote->submit(ask({5, 6, 7}, 3), sink));
  ASSERT_TRUE(eventually([&] { return engine_->requests().size() == 1; }));
  std::thread stopping([&] { server_->stop(30s); });
  ASSERT_TRUE(eventually([&] { return !remote->health(); }));
  EXPECT_NE(remote->health().error().message.find("is stopping"), std::string::npos);
  EXPECT_FALSE(remote->submit(ask({5}, 1), std::make_shared<RecordingSink>()));
  engine_->step(3);
  EXPECT_EQ(sink->wait().reason, FinishReason::length);
  stopping.join();
}

TEST_P(RemoteEngineTest, WhatDoesNotFitIsRefusedByName) {
  start();
  const auto other_model = connect(identity("front", 0, "xyz"));
  ASSERT_TRUE(eventually([&] { return other_model->start_result().has_value(); }));
  const std::string message = other_model->start_result()->error().message;
  EXPECT_NE(message.find("model_fingerprint is abc on attention rank 0"), std::string::npos) << message;
  EXPECT_NE(message.find("xyz on front"), std::string::npos) << message;
  const auto other_rank = connect(identity("front", 0), 3);
  ASSERT_TRUE(eventually([&] { return other_rank->start_result().has_value(); }));
  EXPECT_NE(other_rank->start_result()->error().message.find("says that it is attention rank 0"),
            std::string::npos);
  const auto no_front = connect(identity("attention", 0));
  ASSERT_TRUE(eventually([&] { return no_front->start_result().has_value(); }));
  EXPECT_NE(no_front->start_result()->error().message.find("is not a front"), std::string::npos);
}

TEST_P(RemoteEngineTest, ARankThatComesBackWithLessIsRefused) {
  start();
  const auto remote = connect();
  server_.reset();
  ScriptedEngineOptions less = scripted();
  less.limits.max_queue = 63;
  engine_ = std::make_unique<ScriptedEngine>(less);
  serve();
  ASSERT_TRUE(eventually([&] {
    return remote->waiting_for().find("max_queue 63, it had 64") != std::string::npos;
  })) << remote->waiting_for();
  EXPECT_FALSE(remote->health());
}

// Between its answer to the hello and its first state a rank takes nothing: who waits for it waits for both.
TEST_P(RemoteEngineTest, ARankHasStartedWhenItHasSaidHowItIs) {
  auto listener = listen(fresh_address(), engine_endpoint_options(100ms, kSilence));
  ASSERT_TRUE(listener) << listener.error().message;
  address_ = (*listener)->address();
  const auto remote = connect(identity("front", 0));
  std::unique_ptr<Endpoint> rank;
  ASSERT_TRUE(eventually([&] {
    rank = std::move(*(*listener)->accept());
    return rank != nullptr;
  }));
  const auto say = [&](const std::vector<std::byte>& message) {
    return send_engine_message(*rank, Channel::control, message).has_value();
  };
  ASSERT_TRUE(eventually([&] {
    Incoming hello;
    return rank->poll({&hello, 1}) == 1;
  }));
  EngineIdentity mine = identity("attention", 0);
  tell_limits(scripted().limits, mine);
  ASSERT_TRUE(say(IdentityLayout::encode(EngineMessage::hello_ack, mine)));
  ASSERT_TRUE(eventually([&] {
    rank->poll({});
    return remote->limits().max_queue == 64;
  }));
  EXPECT_FALSE(remote->start_result());
  EXPECT_FALSE(remote->health());
  ASSERT_TRUE(say(StateLayout::encode({})));
  ASSERT_TRUE(eventually([&] {
    rank->poll({});
    return remote->start_result().has_value();
  }));
  EXPECT_TRUE(remote->start_result()->has_value());
  EXPECT_TRUE(remote->health());
}

TEST_P(RemoteEngineTest, TheFrontMayStartFirst) {
  engine_ = std::make_unique<ScriptedEngine>(scripted());
  serve();  // for an address
  server_.reset();
  auto front = std::async(std::launch::async, [&] {
    EngineFrontOptions options;
    options.addresses = {address_};
    options.identity = identity("front", 0);
    options.silence_limit = kSilence;
    return EngineFront::connect(options);
  });
  std::this_thread::sleep_for(150ms);
  serve();
  auto connected = front.get();
  ASSERT_TRUE(connected) << connected.error().message;
  const auto sink = std::make_shared<RecordingSink>();
  ASSERT_TRUE((*connected)->engine().submit(ask({5}, 1), sink));
  EXPECT_EQ(sink->wait().reason, FinishReason::length);
}

INSTANTIATE_TEST_SUITE_P(Transports, RemoteEngineTest, ::testing::Values("inproc", "shm", "tcp"),
                         [](const auto& each) { return std::string(each.param); });

}  // namespace
}  // namespace tandem
