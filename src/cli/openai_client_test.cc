#include "cli/openai_client.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <future>
#include <map>

#include "cli/load/load_run.h"
#include "serving/http_server.h"

namespace tandem {
namespace {

using namespace std::chrono_literals;

// A server whose replies the test writes: by path, status and body; a body that begins with "data:" is a
// stream.
class OpenAiClientTest : public ::testing::Test {
 protected:
  void start(std::map<std::string, std::pair<int, std::string>> replies) {
    RouteTable routes;
    for (const auto& [path, reply] : replies) {
      const auto answer = [this, reply = reply](const auto& request, const auto& writer) {
        key_ = std::string(request->header("authorization"));
        HttpResponse response{.status = reply.first, .body = reply.second};
        if (!reply.second.starts_with("data:")) return writer->respond(response);
        response.content_type = "text/event-stream; charset=utf-8";
        writer->start_stream(response);
        writer->finish();
      };
      routes.add(path == "/v1/models" ? "GET" : "POST", path, answer);
    }
    HttpServerOptions options;
    options.port = 0;
    options.error_response = [](int status, std::string message, std::string_view) {
      return HttpResponse{.status = status, .body = std::move(message)};
    };
    server_ = HttpServer::start(std::move(options), std::move(routes)).value();
    client_ = OpenAiClient::create(server_->url() + "/v1", "sk-1").value();
  }
  OpenAiAnswer ask(const std::string& path) {
    std::promise<OpenAiAnswer> answered;
    client_->ask(path, "{}", [&](OpenAiAnswer answer) { answered.set_value(std::move(answer)); });
    return answered.get_future().get();
  }
  std::string key_;
  std::unique_ptr<HttpServer> server_;
  std::unique_ptr<OpenAiClient> client_;
};

TEST_F(OpenAiClientTest, WholeAnswersOfBothApis) {
  start(
      {{"/v1/completions", {200, R"({"choices": [{"text": "4", "finish_reason": "stop"}],
                    "usage": {"prompt_tokens": 7, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 3}}})"}},
       {"/v1/chat/completions",
        {200,
         R"({"choices": [{"message": {"reasoning_content": "hm ", "content": "5"}, "finish_reason": "length"}]})"}}});
  const OpenAiAnswer plain = ask("/v1/completions");
  EXPECT_TRUE(plain.ok()) << plain.error;
  EXPECT_EQ(plain.text, "4");
  EXPECT_EQ(plain.finish_reason, "stop");
  EXPECT_EQ(plain.prompt_tokens, 7);
  EXPECT_EQ(plain.cached_tokens, 3);
  EXPECT_EQ(plain.completion_tokens, 1);
  EXPECT_TRUE(plain.piece_seconds.empty());
  EXPECT_EQ(key_, "Bearer sk-1");
  const OpenAiAnswer chat = ask("/v1/chat/completions");
  EXPECT_EQ(chat.text, "hm 5");
  EXPECT_EQ(chat.completion_tokens, -1);
}

TEST_F(OpenAiClientTest, StreamsCountPiecesThatBringText) {
  start({{"/v1/chat/completions",
          {200,
           "data: {\"choices\": [{\"delta\": {\"role\": \"assistant\", \"content\": \"\"}, "
           "\"finish_reason\": null}]}\n\n"
           "data: {\"choices\": [{\"delta\": {\"content\": \"a\"}}]}\n\ndata: {\"choices\": [{\"delta\": "
           "{\"content\": \"b\"}}]}\n\n"
           "data: {\"choices\": [{\"delta\": {}, \"finish_reason\": \"stop\"}]}\n\n"
           "data: {\"choices\": [], \"usage\": {\"prompt_tokens\": 2, \"completion_tokens\": 3}}\n\ndata: "
           "[DONE]\n\n"}}});
  const OpenAiAnswer answer = ask("/v1/chat/completions");
  EXPECT_TRUE(answer.ok()) << answer.error;
  EXPECT_EQ(answer.text, "ab");
  EXPECT_EQ(answer.piece_seconds.size(), 2u);
  EXPECT_EQ(answer.completion_tokens, 3);
  EXPECT_LE(answer.piece_seconds.back(), answer.seconds);
}

TEST_F(OpenAiClientTest, WhatFailsSaysWhy) {
  start({{"/429", {429, R"({"error": {"message": "the queue is full", "code": 1}})"}},
         {"/502", {502, "<html>bad gateway</html>"}},
         {"/no-json", {200, "hello"}},
         {"/no-end", {200, R"({"choices": []})"}},
         {"/cut", {200, "data: {\"choices\": [{\"text\": \"a\"}]}\n\n"}},
         {"/later",
          {200,
           "data: {\"choices\": [{\"text\": \"a\"}]}\n\ndata: {\"error\": {\"message\": \"a peer is "
           "lost\"}}\n\n"}}});
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"/429", "the queue is full"},
      {"/502", "status 502: <html>bad gateway</html>"},
      {"/no-json", "the reply is not JSON: hello"},
      {"/no-end", "a reply without a finish_reason"},
      {"/cut", "the stream ended without a finish_reason"},
      {"/later", "a peer is lost"}};
  for (const auto& [path, message] : cases) {
    const OpenAiAnswer answer = ask(path);
    EXPECT_FALSE(answer.ok());
    EXPECT_EQ(answer.error, message) << path;
  }
  EXPECT_EQ(ask("/429").status, 429);
  server_.reset();
  EXPECT_EQ(ask("/429").status, 0);
}

TEST_F(OpenAiClientTest, ModelsAreChosenByName) {
  start({{"/v1/models", {200, R"({"data": [{"id": "a"}, {"id": "b/c"}]})"}}});
  EXPECT_EQ(choose_model(*client_, "").value(), "a");
  EXPECT_EQ(choose_model(*client_, "b/c").value(), "b/c");
  EXPECT_EQ(choose_model(*client_, "d").error().message, server_->url() + " has no model 'd'; it has a, b/c");
  start({{"/v1/models", {401, R"({"error": {"message": "no API key"}})"}}});
  EXPECT_EQ(client_->models().error().message, server_->url() + "/v1/models: status 401: no API key");
}

// The runner against that server: every request has its record, in the order of sending, and no more are in
// flight than may be.
TEST_F(OpenAiClientTest, ALoadHasARecordForEachRequest) {
  start({{"/v1/completions",
          {200, "data: {\"choices\": [{\"text\": \"a\", \"finish_reason\": \"stop\"}]}\n\n"}},
         {"/v1/chat/completions", {429, R"({"error": {"message": "full"}})"}}});
  PromptOptions prompts;
  prompts.input = LengthDistribution::parse("in", "4").value();
  const PromptSource source = PromptSource::create(prompts, nullptr).value();
  LoadOptions load;
  load.model = "m";
  load.max_concurrency = 3;
  load.arrivals.count = 20;
  uint64_t most = 0;
  const auto records = run_load(*client_, load, source, [&](uint64_t, uint64_t, uint64_t in_flight) {
    most = std::max(most, in_flight);
  });
  ASSERT_TRUE(records) << records.error().message;
  ASSERT_EQ(records->size(), 20u);
  for (size_t i = 0; i < records->size(); ++i) {
    const LoadRecord& record = (*records)[i];
    EXPECT_EQ(record.index, i);
    EXPECT_TRUE(record.ok()) << record.error;
    EXPECT_EQ(record.output_tokens, 1);
    EXPECT_EQ(record.input_tokens, 4);  // the server does not say: its words
    EXPECT_GE(record.ended, record.sent);
    if (i > 0) {
      EXPECT_GE(record.sent, (*records)[i - 1].sent);
    }
  }
  EXPECT_LE(most, 3u);
  EXPECT_LE(summarize(*records, {}, {}).most_in_flight, 3u);

  load.path = "/v1/chat/completions";
  load.arrivals = {.rate = 1000, .is_constant = true, .count = 5};
  const auto refused = run_load(*client_, load, source, {});
  EXPECT_EQ(summarize(*refused, {}, {}).failures, (std::map<std::string, uint64_t>{{"429", 5}}));
  EXPECT_GE(refused->back().sent, 0.004);  // its arrival
  EXPECT_EQ(send_warmup(*client_, load, source, 0).error().message,
            "the first request failed with status 429: full");
}

}  // namespace
}  // namespace tandem
