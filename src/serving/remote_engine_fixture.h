// What the tests of RemoteEngine and EngineServer share: the two over every transport, with a scripted engine
// behind them.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "serving/engine_link.h"
#include "serving/engine_server.h"
#include "serving/recording_sink.h"
#include "serving/remote_engine.h"
#include "serving/scripted_engine.h"

namespace tandem {

using namespace std::chrono_literals;

// These tests lose peers by closing them; on a machine that starves them of CPU for seconds nobody is silent.
inline constexpr Duration kSilence = 30s;

inline std::vector<int32_t> echo(const GenerationRequest& request) {
  return {request.prompt.begin(), request.prompt.end()};
}

inline ScriptedEngineOptions scripted(bool free_running = true) {
  ScriptedEngineOptions options;
  options.limits = {.max_context_tokens = 200'000,
                    .kv_pool_tokens = 1 << 22,
                    .vocab_size = 300,
                    .max_num_seqs = 8,
                    .max_queue = 64};
  options.free_running = free_running;
  options.eos_token_ids = {1};
  options.script = echo;
  return options;
}

inline EngineIdentity identity(const std::string& role, uint32_t rank,
                               const std::string& fingerprint = "abc") {
  EngineIdentity value = make_engine_identity(role, rank);
  value.shared.emplace_back("model_fingerprint", fingerprint);
  return value;
}

inline GenerationRequest ask(std::vector<int32_t> prompt, uint32_t max_tokens) {
  GenerationRequest request;
  request.prompt = std::move(prompt);
  request.sampling.max_tokens = max_tokens;
  return request;
}

inline bool eventually(const std::function<bool()>& holds) {
  for (const Instant end = now() + 30s; now() < end; std::this_thread::sleep_for(2ms)) {
    if (holds()) return true;
  }
  return false;
}

class RemoteEngineTest : public ::testing::TestWithParam<const char*> {
 protected:
  std::string fresh_address() {
    static int counter = 0;
    const std::string tag = std::to_string(getpid()) + "_" + std::to_string(++counter);
    const std::string transport = GetParam();
    if (transport == "tcp") return "tcp://127.0.0.1:0";
    if (transport == "shm") return "shm:///tmp/tandem_engine_" + tag + ".sock";
    return "inproc://engine_" + tag;
  }
  EngineServerOptions server_options() {
    EngineServerOptions options;
    options.listen_address = address_.empty() ? fresh_address() : address_;
    options.identity = identity("attention", 0);
    options.silence_limit = kSilence;
    return options;
  }
  void serve(const EngineServerOptions& options) { serve(options, *engine_); }
  void serve(const EngineServerOptions& options, Engine& engine) {
    auto server = EngineServer::start(options, engine);
    ASSERT_TRUE(server) << server.error().message;
    server_ = std::move(*server);
    address_ = server_->address();
  }
  void serve() { serve(server_options()); }
  std::unique_ptr<RemoteEngine> connect(const EngineIdentity& who, uint32_t rank = 0) {
    RemoteEngineOptions options;
    options.address = address_;
    options.rank = rank;
    options.identity = who;
    options.reconnect_interval = 10ms;
    options.silence_limit = kSilence;
    return std::move(*RemoteEngine::start(options));
  }
  std::unique_ptr<RemoteEngine> connect() {
    auto remote = connect(identity("front", 0));
    EXPECT_TRUE(eventually([&] { return remote->health().has_value(); })) << remote->waiting_for();
    return remote;
  }
  void start(const ScriptedEngineOptions& options = scripted()) {
    engine_ = std::make_unique<ScriptedEngine>(options);
    serve();
  }
  void TearDown() override {
    server_.reset();
    engine_.reset();
  }

  std::string address_;
  std::unique_ptr<ScriptedEngine> engine_;
  std::unique_ptr<EngineServer> server_;
};

}  // namespace tandem
