// What the tests of the API share: a server over loopback, a scripted engine behind it, and helpers to talk
// to it.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "serving/api_server.h"
#include "serving/http_test_client.h"
#include "serving/scripted_engine.h"

namespace tandem {

class ApiServerTest : public ::testing::Test {
 protected:
  using json = nlohmann::json;

  ApiServerTest();
  void TearDown() override;

  // A server whose model "org/test-model" answers `output`, one token a byte, unless `options` has a script.
  void start(std::string output = "hello", ScriptedEngineOptions options = {}, bool ready = true);
  void make_ready();

  // Requests that are good, with `more` merged over them.
  static json chat_body();
  static json chat_body(const json& more);
  static json completion_body();
  static json completion_body(const json& more);

  TestReply post(const std::string& path, const json& body);
  json chat();
  json chat(const json& more, int status = 200);
  json complete();
  json complete(const json& more, int status = 200);
  // The events of a stream; the last one must be [DONE] and is left out.
  std::vector<json> stream(const std::string& path, const json& body);
  static std::vector<std::string> parse_events(const std::string& body);
  // A sample without labels, -1 when there is none.
  double metric(const std::string& name);

  // What the model folder is; before start().
  void (*write_folder_)(const std::string& folder);
  std::unique_ptr<ScriptedEngine> engine_;
  std::unique_ptr<ApiServer> server_;
};

}  // namespace tandem
