// The API over loopback, against a scripted engine: streams, disconnects, a full queue, many clients at once.
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "serving/api_server_fixture.h"

namespace tandem {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;

TEST_F(ApiServerTest, StopStringsCutEverywhereAtTheSamePlace) {
  start("ABCDEFGHIJ");
  struct Row {
    json stop;
    std::string want;
  };
  for (const Row& row : {Row{"DEFGHIJ", "ABC"}, Row{{"CDX", "EF"}, "ABCD"}, Row{"IJK", "ABCDEFGHIJ"}}) {
    const json stop = {{"stop", row.stop}};
    EXPECT_EQ(chat(stop)["choices"][0]["message"]["content"], row.want);
    json more = stop;
    more["logprobs"] = 1;
    const json whole = complete(more)["choices"][0];
    EXPECT_EQ(whole["text"], row.want);
    std::string text, joined;
    for (const json& event : stream("/v1/chat/completions", chat_body(stop))) {
      text += event["choices"][0]["delta"].value("content", "");
    }
    EXPECT_EQ(text, row.want);
    text.clear();
    json tokens = json::array();
    for (const json& event : stream("/v1/completions", completion_body(more))) {
      const json& choice = event["choices"][0];
      text += choice["text"].get<std::string>();
      if (!choice["logprobs"].is_null())
        tokens.insert(tokens.end(), choice["logprobs"]["tokens"].begin(), choice["logprobs"]["tokens"].end());
    }
    EXPECT_EQ(text, row.want);
    EXPECT_EQ(tokens, whole["logprobs"]["tokens"]);
    for (const json& token : tokens) joined += token.get<std::string>();
    EXPECT_EQ(joined, row.want);
  }
}

TEST_F(ApiServerTest, ChatStreamsRoleTextEnd) {
  start("ab");
  const auto events = stream("/v1/chat/completions", chat_body({{"max_tokens", 2}}));
  ASSERT_EQ(events.size(), 4u);
  for (const json& event : events) {
    EXPECT_EQ(event["object"], "chat.completion.chunk");
    EXPECT_EQ(event["id"], events[0]["id"]);
    EXPECT_FALSE(event.contains("usage"));
    EXPECT_EQ(event["choices"].size(), 1u);
  }
  EXPECT_EQ(
      events[0]["choices"][0],
      json::parse(
          R"({"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null})"));
  EXPECT_EQ(events[1]["choices"][0],
            json::parse(R"({"index":0,"delta":{"content":"a"},"logprobs":null,"finish_reason":null})"));
  EXPECT_EQ(events[3]["choices"][0],
            json::parse(R"({"index":0,"delta":{},"logprobs":null,"finish_reason":"length"})"));
}

TEST_F(ApiServerTest, UsageComesOnlyWhenAskedAndLast) {
  start("ab");
  for (const char* path : {"/v1/chat/completions", "/v1/completions"}) {
    json body = std::string(path) == "/v1/completions" ? completion_body() : chat_body();
    body["n"] = 2;
    body["stream_options"] = {{"include_usage", true}};
    const auto events = stream(path, body);
    for (size_t i = 0; i + 1 < events.size(); ++i) {
      EXPECT_EQ(events[i]["choices"].size(), 1u);
      EXPECT_TRUE(events[i].contains("usage") && events[i]["usage"].is_null());
    }
    EXPECT_EQ(events.back()["choices"], json::array());
    EXPECT_EQ(events.back()["usage"]["completion_tokens"], 6);
    int ends = 0;
    for (const json& event : events)
      ends += !event["choices"].empty() && event["choices"][0]["finish_reason"] == "stop";
    EXPECT_EQ(ends, 2);
  }
}

// vLLM's field, which load generators count tokens with.
TEST_F(ApiServerTest, UsageInEveryChunk) {
  start("ab");
  for (const char* path : {"/v1/chat/completions", "/v1/completions"}) {
    const bool chat = std::string(path) != "/v1/completions";
    json body = chat ? chat_body() : completion_body();
    if (!chat) body["prompt"] = {{1, 2, 3}, {4, 5}};
    body["stream_options"] = {{"include_usage", true}, {"continuous_usage_stats", true}};
    const auto events = stream(path, body);
    int64_t prompt_tokens = 0;
    std::map<int, std::vector<int>> completion_tokens;
    for (size_t i = 0; i + 1 < events.size(); ++i) {
      const json& usage = events[i]["usage"];
      const int answer = events[i]["choices"][0]["index"];
      completion_tokens[answer].push_back(usage["completion_tokens"]);
      if (!chat) {
        EXPECT_EQ(usage["prompt_tokens"], answer == 0 ? 3 : 2);
      }
      if (completion_tokens[answer].size() == 1) prompt_tokens += usage["prompt_tokens"].get<int64_t>();
      EXPECT_EQ(usage["total_tokens"],
                usage["prompt_tokens"].get<int>() + usage["completion_tokens"].get<int>());
    }
    // Chat: the role, two pieces, the end.
    const std::vector<int> want = chat ? std::vector{0, 1, 2, 3} : std::vector{1, 2, 3};
    for (const auto& [answer, counts] : completion_tokens) EXPECT_EQ(counts, want) << path;
    EXPECT_EQ(completion_tokens.size(), chat ? 1u : 2u);
    EXPECT_EQ(events.back()["usage"]["prompt_tokens"], prompt_tokens);
    EXPECT_EQ(events.back()["usage"]["completion_tokens"], chat ? 3 : 6);
  }
}

TEST_F(ApiServerTest, AFullQueueIs429) {
  start("abc", {.limits = {.max_context_tokens = 128,
                           .kv_pool_tokens = 1024,
                           .vocab_size = 300,
                           .max_num_seqs = 1,
                           .max_queue = 2},
                .free_running = false});
  TestClient one(server_->port()), two(server_->port()), three(server_->port());
  one.send(test_request("POST", "/v1/completions", completion_body().dump()));
  two.send(test_request("POST", "/v1/completions", completion_body().dump()));
  while (engine_->requests().size() < 2) std::this_thread::sleep_for(1ms);
  const TestReply full = three.post("/v1/completions", completion_body().dump());
  EXPECT_EQ(full.status, 429);
  EXPECT_TRUE(full.headers.contains("retry-after"));
  // The same as a stream: the refusal still has its status.
  EXPECT_EQ(three.post("/v1/completions", completion_body({{"stream", true}}).dump()).status, 429);
  engine_->step(8);
  EXPECT_EQ(one.receive().status, 200);
  EXPECT_EQ(two.receive().status, 200);
}

TEST_F(ApiServerTest, AnErrorInsideAStreamIsAnEvent) {
  start("abcdef", {.free_running = false});
  TestClient client(server_->port());
  // Usage that was asked for comes at a normal end alone.
  const json wish = {{"stream", true}, {"stream_options", {{"include_usage", true}}}};
  client.send(test_request("POST", "/v1/chat/completions", chat_body(wish).dump()));
  while (engine_->requests().empty()) std::this_thread::sleep_for(1ms);
  engine_->step(2);
  client.receive_until("\"b\"");
  engine_->lose_peer({ErrorCode::unavailable, "ffn0 at 10.0.0.2:7000 is gone"});
  const TestReply reply = client.receive();
  EXPECT_TRUE(reply.complete);
  const auto events = parse_events(reply.body);
  const json last = json::parse(events.back());
  EXPECT_EQ(last["error"]["message"], "ffn0 at 10.0.0.2:7000 is gone");
  EXPECT_EQ(last["error"]["type"], "service_unavailable_error");
  for (size_t i = 0; i + 1 < events.size(); ++i) {
    const json event = json::parse(events[i]);
    EXPECT_TRUE(event["usage"].is_null());
    EXPECT_EQ(event["choices"].size(), 1u);
    EXPECT_EQ(event["choices"][0]["finish_reason"], nullptr);
  }
}

TEST_F(ApiServerTest, ADisconnectFreesInEveryState) {
  start("abcdefgh", {.limits = {.max_context_tokens = 128,
                                .kv_pool_tokens = 1024,
                                .vocab_size = 300,
                                .max_num_seqs = 1,
                                .max_queue = 8},
                     .free_running = false});
  for (const bool is_stream : {true, false}) {
    const size_t before = engine_->requests().size();
    const uint64_t cancelled = engine_->stats().cancelled;
    auto running = std::make_unique<TestClient>(server_->port()),
         queued = std::make_unique<TestClient>(server_->port());
    for (TestClient* client : {running.get(), queued.get()}) {
      client->send(test_request("POST", "/v1/completions", completion_body({{"stream", is_stream}}).dump()));
    }
    while (engine_->requests().size() < before + 2) std::this_thread::sleep_for(1ms);
    engine_->step(3);
    EXPECT_EQ(metric("tandem_requests_running"), 1);
    EXPECT_EQ(metric("tandem_requests_waiting"), 1);
    EXPECT_GT(metric("tandem_kv_blocks_used"), 0);
    running.reset();
    queued.reset();
    for (int i = 0; i < 3000 && engine_->cancels() < (is_stream ? 2 : 4); ++i)
      std::this_thread::sleep_for(10ms);
    engine_->step(1);
    EXPECT_EQ(metric("tandem_requests_running"), 0);
    EXPECT_EQ(metric("tandem_requests_waiting"), 0);
    EXPECT_EQ(metric("tandem_kv_blocks_used"), 0);
    EXPECT_EQ(engine_->stats().cancelled, cancelled + 2);
  }
  EXPECT_EQ(engine_->late_cancels(), 0);
  EXPECT_EQ(metric("tandem_http_disconnects_total"), 4);
}

TEST_F(ApiServerTest, SixtyFourStreamsAtOnceWhileHealthAnswers) {
  start(std::string(60, 'z'), {.limits = {.max_context_tokens = 128,
                                          .kv_pool_tokens = 16384,
                                          .vocab_size = 300,
                                          .max_num_seqs = 16,
                                          .max_queue = 256}});
  constexpr int kStreams = 64;
  std::vector<std::unique_ptr<TestClient>> clients;
  for (int i = 0; i < kStreams; ++i) {
    clients.push_back(std::make_unique<TestClient>(server_->port()));
    clients.back()->send(test_request("POST", "/v1/chat/completions",
                                      chat_body({{"stream", true}, {"max_tokens", 50}}).dump()));
    TestClient health(server_->port());
    EXPECT_EQ(health.get("/health").status, 200);
  }
  for (auto& client : clients) {
    const TestReply reply = client->receive();
    EXPECT_TRUE(reply.complete);
    std::string text;
    const auto events = parse_events(reply.body);
    EXPECT_EQ(events.back(), "[DONE]");
    for (const std::string& event : events) {
      if (event != "[DONE]") text += json::parse(event)["choices"][0]["delta"].value("content", "");
    }
    EXPECT_EQ(text, std::string(50, 'z'));
  }
}

TEST_F(ApiServerTest, StopEndsOpenStreamsAndTheEngineIsFree) {
  start("abcdef", {.free_running = false});
  TestClient client(server_->port());
  client.send(test_request("POST", "/v1/completions", completion_body({{"stream", true}}).dump()));
  while (engine_->requests().empty()) std::this_thread::sleep_for(1ms);
  engine_->step(2);
  client.receive_until("\"b\"");
  server_->stop(10ms);
  EXPECT_EQ(engine_->cancels(), 1);
  engine_->step(1);
  EXPECT_EQ(engine_->stats().running, 0u);
  server_->stop(10ms);
}

}  // namespace
}  // namespace tandem
