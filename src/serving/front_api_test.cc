// The API over loopback with a front behind it: two scripted engines, one of which is lost.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "serving/api_server.h"
#include "serving/balanced_engine.h"
#include "serving/http_test_client.h"
#include "serving/scripted_engine.h"
#include "serving/test_tokenizer.h"

namespace tandem {
namespace {

using nlohmann::json;

TEST(FrontApi, HealthAndMetricsSpeakOfEveryRank) {
  std::vector<ScriptedEngine*> scripted;
  std::vector<BalancedEngine::Rank> ranks;
  for (int i = 0; i < 2; ++i) {
    ScriptedEngineOptions options;
    options.script = [](const GenerationRequest&) { return std::vector<int32_t>{104, 105}; };
    auto engine = std::make_unique<ScriptedEngine>(options);
    scripted.push_back(engine.get());
    ranks.push_back({"attention rank " + std::to_string(i), std::move(engine)});
  }
  BalancedEngine front(std::move(ranks));
  ApiServerOptions server_options;
  server_options.http.port = 0;
  server_options.access_log = false;
  auto server = ApiServer::start(std::move(server_options));
  ASSERT_TRUE(server) << server.error().message;
  ServedModel model;
  model.id = "m";
  model.tokenizer = load_test_tokenizer();
  attach_engine(model, front);
  (*server)->set_ready(std::move(model));
  TestClient client((*server)->port());
  const json ask = {{"model", "m"}, {"prompt", "x"}, {"max_tokens", 2}};

  json health = json::parse(client.get("/health").body);
  EXPECT_EQ(health["status"], "ok");
  ASSERT_EQ(health["ranks"].size(), 2u);
  EXPECT_EQ(health["ranks"][1]["ready"], true);
  EXPECT_EQ(client.post("/v1/completions", ask.dump()).status, 200);
  EXPECT_NE(client.get("/metrics").body.find("tandem_attention_rank_ready{rank=\"1\"} 1"), std::string::npos);

  scripted[1]->lose_peer({ErrorCode::unavailable, "attention rank 1: FFN rank 0 is gone"});
  TestReply reply = client.get("/health");
  EXPECT_EQ(reply.status, 200) << "the other rank serves";
  health = json::parse(reply.body);
  EXPECT_EQ(health["status"], "degraded");
  EXPECT_EQ(health["reason"], "attention rank 1: FFN rank 0 is gone");
  EXPECT_EQ(health["ranks"][0]["ready"], true);
  EXPECT_EQ(health["ranks"][1]["ready"], false);
  EXPECT_NE(client.get("/metrics").body.find("tandem_attention_rank_ready{rank=\"1\"} 0"), std::string::npos);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(client.post("/v1/completions", ask.dump()).status, 200);
  EXPECT_GE(scripted[0]->requests().size(), 4u);

  scripted[0]->lose_peer({ErrorCode::unavailable, "attention rank 0: connection closed"});
  reply = client.get("/health");
  EXPECT_EQ(reply.status, 503);
  EXPECT_NE(reply.body.find("no attention rank serves"), std::string::npos);
  EXPECT_EQ(client.post("/v1/completions", ask.dump()).status, 503);
  (*server)->stop(Duration::zero());
}

}  // namespace
}  // namespace tandem
