#include "serving/api_server_fixture.h"

#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "serving/test_tokenizer.h"

namespace tandem {

using nlohmann::json;

ApiServerTest::ApiServerTest() : write_folder_(write_test_model_folder) {}

void ApiServerTest::TearDown() {
  server_.reset();  // before the engine
  engine_.reset();
}

void ApiServerTest::start(std::string output, ScriptedEngineOptions options, bool ready) {
  options.eos_token_ids = {kEosId};
  if (!options.script) {
    options.script = [output = std::move(output)](const GenerationRequest&) { return byte_ids(output); };
  }
  engine_ = std::make_unique<ScriptedEngine>(std::move(options));
  ApiServerOptions server_options;
  server_options.http.port = 0;
  server_options.access_log = false;
  auto server = ApiServer::start(std::move(server_options));
  ASSERT_TRUE(server) << server.error().message;
  server_ = std::move(*server);
  if (ready) make_ready();
}

void ApiServerTest::make_ready() {
  const auto folder =
      std::filesystem::temp_directory_path() / ("tandem_api_test_" + std::to_string(getpid()));
  write_folder_(folder.string());
  auto model = read_served_model(folder.string(), "org/test-model");
  std::filesystem::remove_all(folder);
  ASSERT_TRUE(model) << model.error().message;
  attach_engine(*model, *engine_);
  server_->set_ready(std::move(*model));
}

json ApiServerTest::chat_body() {
  return chat_body(json::object());
}
json ApiServerTest::completion_body() {
  return completion_body(json::object());
}
json ApiServerTest::chat() {
  return chat(json::object());
}
json ApiServerTest::complete() {
  return complete(json::object());
}

json ApiServerTest::chat_body(const json& more) {
  json body = {{"model", "org/test-model"}, {"messages", {{{"role", "user"}, {"content", "hi"}}}}};
  body.update(more);
  return body;
}

json ApiServerTest::completion_body(const json& more) {
  json body = {{"model", "org/test-model"}, {"prompt", "hi"}};
  body.update(more);
  return body;
}

TestReply ApiServerTest::post(const std::string& path, const json& body) {
  TestClient client(server_->port());
  return client.post(path, body.dump());
}

json ApiServerTest::chat(const json& more, int status) {
  const TestReply reply = post("/v1/chat/completions", chat_body(more));
  EXPECT_EQ(reply.status, status) << reply.body;
  return json::parse(reply.body, nullptr, false);
}

json ApiServerTest::complete(const json& more, int status) {
  const TestReply reply = post("/v1/completions", completion_body(more));
  EXPECT_EQ(reply.status, status) << reply.body;
  return json::parse(reply.body, nullptr, false);
}

std::vector<json> ApiServerTest::stream(const std::string& path, const json& body) {
  json streaming = body;
  streaming["stream"] = true;
  const TestReply reply = post(path, streaming);
  EXPECT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(reply.headers.at("content-type"), "text/event-stream; charset=utf-8");
  const auto events = parse_events(reply.body);
  EXPECT_FALSE(events.empty());
  EXPECT_EQ(events.back(), "[DONE]");
  std::vector<json> out;
  for (size_t i = 0; i + 1 < events.size(); ++i) out.push_back(json::parse(events[i]));
  return out;
}

std::vector<std::string> ApiServerTest::parse_events(const std::string& body) {
  std::vector<std::string> events;
  for (size_t at = 0; at < body.size();) {
    const size_t end = body.find("\n\n", at);
    EXPECT_NE(end, std::string::npos);
    if (end == std::string::npos) break;
    EXPECT_EQ(body.substr(at, 6), "data: ");
    events.push_back(body.substr(at + 6, end - at - 6));
    at = end + 2;
  }
  return events;
}

double ApiServerTest::metric(const std::string& name) {
  TestClient client(server_->port());
  const std::string text = client.get("/metrics").body;
  const size_t at = text.find("\n" + name + " ");
  return at == std::string::npos ? -1 : std::stod(text.substr(at + name.size() + 2));
}

}  // namespace tandem
