// EngineServer: fronts that read nothing, send garbage or leave, and requests that take long to begin.
#include "serving/engine_server.h"

#include <atomic>

#include "serving/remote_engine_fixture.h"

namespace tandem {
namespace {

class EngineServerTest : public RemoteEngineTest {};

TEST_P(EngineServerTest, AFrontThatReadsNothingLosesItsRequestsAndHoldsUpNobody) {
  // Without an end of its own: on a starved machine a context of 200,000 tokens is full before anybody looks.
  ScriptedEngineOptions without_end = scripted();
  without_end.limits.max_context_tokens = UINT32_MAX;
  engine_ = std::make_unique<ScriptedEngine>(std::move(without_end));
  EngineServerOptions options = server_options();
  options.max_pending_bytes = size_t{1} << 14;
  serve(options);
  const auto good = connect();
  // A front by hand: it says hello, submits, keeps its heartbeats, and gives no slot back.
  auto endpoint =
      tandem::connect(address_, engine_endpoint_options(options.heartbeat_interval, options.silence_limit));
  ASSERT_TRUE(endpoint) << endpoint.error().message;
  ASSERT_TRUE(send_engine_message(**endpoint, Channel::control,
                                  IdentityLayout::encode(EngineMessage::hello, identity("front", 0))));
  GenerationRequest endless = ask({5}, UINT32_MAX);
  endless.sampling.ignore_eos = true;
  const auto bytes = RequestLayout::encode(endless, now());
  std::vector<std::byte> message(SubmitPartLayout::message_bytes(bytes.size(), kEngineSlotBytes));
  SubmitPartLayout::write({1, static_cast<uint32_t>(bytes.size()), 0, bytes}, message);
  std::vector<Incoming> held(64);
  size_t taken = 0;
  const auto keep = [&] {
    taken += (*endpoint)->poll(std::span(held).subspan(taken));
  };  // as many as there are slots
  ASSERT_TRUE(eventually([&] {
    keep();
    return send_engine_message(**endpoint, Channel::request, message).has_value();
  }));
  ASSERT_TRUE(eventually([&] {
    keep();
    return engine_->cancels() == 1;
  })) << "the engine ran on for a front that does not read";
  const auto sink = std::make_shared<RecordingSink>();
  ASSERT_TRUE(good->submit(ask({5, 6}, 2), sink));
  EXPECT_EQ(sink->wait().reason, FinishReason::length);
  // What it reads at last ends with the reason.
  struct Ends final : EventLayout::Visitor {
    void on_token(uint64_t, const TokenEvent&) override { ++tokens; }
    void on_prompt_token(uint64_t, const TokenEvent&) override {}
    void on_finish(uint64_t, const Finish& finish) override { message = finish.error.message; }
    size_t tokens = 0;
    std::string message;
  } ends;
  const auto read = [&](Incoming& incoming) {
    const auto head = EngineHead::parse(incoming.lease.bytes());
    if (head && head->kind == EngineMessage::events) (void)EventLayout::visit(head->body, ends);
    incoming.lease = Lease();
  };
  for (size_t i = 0; i < taken; ++i) read(held[i]);
  ASSERT_TRUE(eventually([&] {
    Incoming incoming;
    while ((*endpoint)->poll({&incoming, 1}) == 1) read(incoming);
    return !ends.message.empty();
  }));
  EXPECT_NE(ends.message.find("reads tokens too slowly"), std::string::npos) << ends.message;
  EXPECT_GT(ends.tokens, 100u);
}

TEST_P(EngineServerTest, GarbageEndsThatConnectionAlone) {
  start();
  const auto good = connect();
  auto endpoint = tandem::connect(address_, engine_endpoint_options(100ms, kSilence));
  ASSERT_TRUE(endpoint);
  const std::vector<std::byte> garbage(100, std::byte{7});
  ASSERT_TRUE(send_engine_message(**endpoint, Channel::request, garbage));
  ASSERT_TRUE(eventually([&] {
    Incoming incoming;
    (*endpoint)->poll({&incoming, 1});
    return (*endpoint)->peer() != PeerState::alive;
  }));
  const auto sink = std::make_shared<RecordingSink>();
  ASSERT_TRUE(good->submit(ask({5, 6}, 2), sink));
  EXPECT_EQ(sink->wait().reason, FinishReason::length);
}

TEST_P(EngineServerTest, AFrontThatLeavesHasItsRequestsCancelled) {
  start(scripted(false));
  auto remote = connect();
  const auto sink = std::make_shared<RecordingSink>();
  ASSERT_TRUE(remote->submit(ask({5, 6}, 100), sink));
  ASSERT_TRUE(eventually([&] { return engine_->requests().size() == 1; }));
  remote.reset();
  EXPECT_EQ(sink->wait().reason, FinishReason::cancelled);
  ASSERT_TRUE(eventually([&] { return engine_->cancels() == 1 && server_->fronts() == 0; }));
  engine_->step();
  EXPECT_TRUE(engine_->wait_idle());
}

// An engine that compiles forms for as long as the test wants.
class SlowForms final : public Engine {
 public:
  explicit SlowForms(Engine& engine) : engine_(engine) {}
  const EngineLimits& limits() const override { return engine_.limits(); }
  Result<RequestId> submit(GenerationRequest request, std::shared_ptr<GenerationSink> sink) override {
    if (!request.sampling.grammar.empty()) {
      ++waiting;
      while (compiling) std::this_thread::sleep_for(1ms);
    }
    return engine_.submit(std::move(request), std::move(sink));
  }
  void cancel(RequestId id) override { engine_.cancel(id); }
  EngineStats stats() const override { return engine_.stats(); }
  Status health() const override { return engine_.health(); }
  std::atomic<int> waiting{0};
  std::atomic<bool> compiling{true};

 private:
  Engine& engine_;
};

GenerationRequest ask_with_form(int32_t first, uint32_t max_tokens) {
  GenerationRequest request = ask({first}, max_tokens);
  request.sampling.ignore_eos = true;
  request.sampling.grammar.kind = GrammarKind::json_object;
  return request;
}

TEST_P(EngineServerTest, AFormThatIsCompiledHoldsUpNobody) {
  ScriptedEngineOptions without_end = scripted();
  without_end.limits.max_context_tokens = UINT32_MAX;
  engine_ = std::make_unique<ScriptedEngine>(std::move(without_end));
  SlowForms slow(*engine_);
  serve(server_options(), slow);
  auto remote = connect();
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  const auto submit = [&](GenerationRequest request) {
    sinks.push_back(std::make_shared<RecordingSink>());
    const auto id = remote->submit(std::move(request), sinks.back());
    EXPECT_TRUE(id) << id.error().message;
    return *id;
  };
  const RequestId endless = submit(ask_with_form(5, UINT32_MAX));
  ASSERT_TRUE(eventually([&] { return slow.waiting == 1; }));
  submit(ask_with_form(6, 3));
  const RequestId behind = submit(ask_with_form(7, 3));
  submit(ask({8, 9}, 2));
  EXPECT_EQ(sinks[3]->wait().reason, FinishReason::length) << "it has no form, and waits for none";
  EXPECT_EQ(engine_->requests().size(), 1u);
  remote->cancel(behind);   // before its turn
  remote->cancel(endless);  // in the midst of it
  submit(ask({8}, 1));      // behind the cancels
  EXPECT_EQ(sinks[4]->wait().reason, FinishReason::length);
  slow.compiling = false;
  EXPECT_EQ(sinks[0]->wait().reason, FinishReason::cancelled);
  EXPECT_EQ(sinks[1]->wait().reason, FinishReason::length);
  EXPECT_EQ(sinks[2]->wait().reason, FinishReason::cancelled);
  EXPECT_EQ(slow.waiting, 2) << "the third was never compiled";
  // A front that leaves meanwhile.
  slow.compiling = true;
  submit(ask_with_form(5, UINT32_MAX));
  ASSERT_TRUE(eventually([&] { return slow.waiting == 3; }));
  remote.reset();
  ASSERT_TRUE(eventually([&] { return server_->fronts() == 0; }));
  slow.compiling = false;
  ASSERT_TRUE(eventually([&] { return engine_->requests().size() == 5; }));
  EXPECT_TRUE(engine_->wait_idle());
  server_.reset();
}

INSTANTIATE_TEST_SUITE_P(Transports, EngineServerTest, ::testing::Values("inproc", "shm", "tcp"),
                         [](const auto& each) { return std::string(each.param); });

}  // namespace
}  // namespace tandem
