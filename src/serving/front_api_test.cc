// The API over loopback with a front behind it: two scripted engines, one of which is lost.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "serving/api_server.h"
#include "serving/balanced_engine.h"
#include "serving/http_test_client.h"
#include "serving/recording_sink.h"
#include "serving/scripted_engine.h"
#include "serving/test_tokenizer.h"

namespace tandem {
namespace {

using nlohmann::json;

// A server of a front before two scripted engines.
class FrontApi : public ::testing::Test {
 protected:
  void start(ScriptedEngineOptions options = {}) {
    options.script = [](const GenerationRequest&) { return std::vector<int32_t>{104, 105}; };
    std::vector<BalancedEngine::Rank> ranks;
    for (int i = 0; i < 2; ++i) {
      auto engine = std::make_unique<ScriptedEngine>(options);
      scripted_.push_back(engine.get());
      ranks.push_back({"attention rank " + std::to_string(i), std::move(engine)});
    }
    front_ = std::make_unique<BalancedEngine>(std::move(ranks));
    ApiServerOptions server_options;
    server_options.http.port = 0;
    server_options.access_log = false;
    auto server = ApiServer::start(std::move(server_options));
    ASSERT_TRUE(server) << server.error().message;
    server_ = std::move(*server);
    ServedModel model;
    model.id = "m";
    model.tokenizer = load_test_tokenizer();
    attach_engine(model, *front_);
    server_->set_ready(std::move(model));
  }
  void TearDown() override { server_.reset(); }  // before what it asks

  std::vector<ScriptedEngine*> scripted_;
  std::unique_ptr<BalancedEngine> front_;
  std::unique_ptr<ApiServer> server_;
};

TEST_F(FrontApi, ReadyWhileAQueueHasRoom) {
  start({.limits = {.max_context_tokens = 128,
                    .kv_pool_tokens = 1024,
                    .vocab_size = 300,
                    .max_num_seqs = 1,
                    .max_queue = 2},
         .free_running = false});
  TestClient client(server_->port());
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(client.get("/ready").status, 200) << i << " wait in queues of two";
    GenerationRequest request;
    request.prompt = {5};
    request.sampling.max_tokens = 1;
    sinks.push_back(std::make_shared<RecordingSink>());
    ASSERT_TRUE(front_->submit(std::move(request), sinks.back()));
  }
  const TestReply full = client.get("/ready");
  EXPECT_EQ(full.status, 503);
  EXPECT_NE(full.body.find("the queue is full: 4 requests wait"), std::string::npos) << full.body;
  for (ScriptedEngine* rank : scripted_) rank->step(3);
  for (const auto& sink : sinks) EXPECT_EQ(sink->wait().reason, FinishReason::length);
  EXPECT_EQ(client.get("/ready").status, 200);
}

TEST_F(FrontApi, HealthAndMetricsSpeakOfEveryRank) {
  start();
  TestClient client(server_->port());
  const json ask = {{"model", "m"}, {"prompt", "x"}, {"max_tokens", 2}};

  json health = json::parse(client.get("/health").body);
  EXPECT_EQ(health["status"], "ok");
  ASSERT_EQ(health["ranks"].size(), 2u);
  EXPECT_EQ(health["ranks"][1]["ready"], true);
  EXPECT_EQ(client.post("/v1/completions", ask.dump()).status, 200);
  EXPECT_NE(client.get("/metrics").body.find("tandem_attention_rank_ready{rank=\"1\"} 1"), std::string::npos);

  scripted_[1]->lose_peer({ErrorCode::unavailable, "attention rank 1: FFN rank 0 is gone"});
  TestReply reply = client.get("/health");
  EXPECT_EQ(reply.status, 200) << "the other rank serves";
  health = json::parse(reply.body);
  EXPECT_EQ(health["status"], "degraded");
  EXPECT_EQ(health["reason"], "attention rank 1: FFN rank 0 is gone");
  EXPECT_EQ(health["ranks"][0]["ready"], true);
  EXPECT_EQ(health["ranks"][1]["ready"], false);
  EXPECT_NE(client.get("/metrics").body.find("tandem_attention_rank_ready{rank=\"1\"} 0"), std::string::npos);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(client.post("/v1/completions", ask.dump()).status, 200);
  EXPECT_GE(scripted_[0]->requests().size(), 4u);

  scripted_[0]->lose_peer({ErrorCode::unavailable, "attention rank 0: connection closed"});
  reply = client.get("/health");
  EXPECT_EQ(reply.status, 503);
  EXPECT_NE(reply.body.find("no attention rank serves"), std::string::npos);
  EXPECT_EQ(client.post("/v1/completions", ask.dump()).status, 503);
}

}  // namespace
}  // namespace tandem
