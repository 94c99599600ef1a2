// TraceEndpoint: what it refuses, one at a time, windows of a ring that a thread writes, and ends that come
// early.
#include "serving/trace_endpoint.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "serving/http_server.h"
#include "serving/http_test_client.h"

namespace tandem {
namespace {

using namespace std::chrono_literals;

TEST(TraceQuery, IsSecondsAheadOrBack) {
  EXPECT_EQ(parse_trace_query("seconds=5")->seconds, 5);
  EXPECT_FALSE(parse_trace_query("seconds=5")->past);
  EXPECT_EQ(parse_trace_query("last=0.5")->seconds, 0.5);
  EXPECT_TRUE(parse_trace_query("last=60")->past);
  for (const char* query : {"seconds=", "seconds=0", "seconds=61", "seconds=-1", "seconds=1x", "last=nan",
                            "seconds=inf", "last"}) {
    const auto asked = parse_trace_query(query);
    ASSERT_FALSE(asked) << query;
    EXPECT_NE(asked.error().message.find("is not a number of seconds in 0.1..60"), std::string::npos)
        << asked.error().message;
  }
  for (const char* query : {"", "second=5", "=5"}) {
    const auto asked = parse_trace_query(query);
    ASSERT_FALSE(asked) << query;
    EXPECT_NE(asked.error().message.find("use ?seconds=N"), std::string::npos) << asked.error().message;
  }
}

// A writer that turns every millisecond, as an engine does, and an endpoint behind a server.
class TraceEndpointTest : public ::testing::Test {
 protected:
  void start(bool on, bool attached = true, bool always = false) {
    endpoint_ = std::make_unique<TraceEndpoint>(
        TraceEndpointOptions{.on = on,
                             .error_response =
                                 [](int status, std::string message, std::string_view) {
                                   return HttpResponse{.status = status, .body = std::move(message)};
                                 },
                             .max_events = 1000});
    if (always) ring_.ask();
    if (attached) endpoint_->attach(source(always));
    RouteTable routes;
    routes.add("GET", kTracePath,
               [this](const auto& request, const auto& writer) { endpoint_->handle(request, writer); });
    auto server = HttpServer::start({.port = 0}, std::move(routes));
    ASSERT_TRUE(server) << server.error().message;
    server_ = std::move(*server);
    writer_ = std::thread([this] {
      while (!stop_.load()) {
        const Instant began = now();
        std::this_thread::sleep_for(1ms);
        if (ring_.turn()) ring_.add({.begin_ns = trace_time(began), .end_ns = trace_time(now())});
        turns_.fetch_add(1);
      }
    });
  }

  TraceSource source(bool always) {
    return {&ring_, always, [](const TraceWindow& window) {
              if (window.events.empty()) return std::string("none");
              return std::to_string(window.events.size()) + " " +
                     std::to_string(window.events.back().end_ns - window.complete_from_ns);
            }};
  }

  void TearDown() override {
    if (endpoint_) endpoint_->stop();
    if (server_) server_->stop(Duration::zero());
    stop_.store(true);
    if (writer_.joinable()) writer_.join();
  }

  TestReply get(const std::string& query) { return TestClient(server_->port()).get(kTracePath + query); }
  void wait_turns(int more) {
    const int until = turns_.load() + more;
    while (turns_.load() < until) std::this_thread::yield();
  }

  TraceRing ring_{1 << 16};
  std::unique_ptr<TraceEndpoint> endpoint_;
  std::unique_ptr<HttpServer> server_;
  std::atomic<bool> stop_{false};
  std::atomic<int> turns_{0};
  std::thread writer_;
};

TEST_F(TraceEndpointTest, IsOffUnlessItIsAskedFor) {
  start(false);
  const TestReply reply = get("?seconds=1");
  EXPECT_EQ(reply.status, 404);
  EXPECT_EQ(reply.body, "traces on request are off: start this process with --trace-requests");
}

TEST_F(TraceEndpointTest, SaysWhatItCannotDo) {
  start(true, false);
  EXPECT_EQ(get("?seconds=1").status, 503);
  EXPECT_EQ(get("?seconds=0").status, 400) << "whatever else";
  endpoint_->attach({});
  EXPECT_EQ(get("?seconds=1").body, "this process runs no lanes: ask the attention ranks behind it");
  endpoint_->attach(source(false));
  const TestReply past = get("?last=1");
  EXPECT_EQ(past.status, 400);
  EXPECT_NE(past.body.find("nothing is recorded before it is asked for"), std::string::npos);
}

TEST_F(TraceEndpointTest, RecordsWhileItIsAskedToAndNothingElse) {
  start(true);
  wait_turns(3);
  EXPECT_EQ(ring_.written(), 0u);
  const TestReply reply = get("?seconds=0.2");
  EXPECT_EQ(reply.status, 200);
  EXPECT_GT(std::stol(reply.body), 1) << reply.body;
  wait_turns(2);
  const uint64_t written = ring_.written();
  wait_turns(3);
  EXPECT_EQ(ring_.written(), written) << "it is over";
  EXPECT_EQ(get("?seconds=0.1").status, 200) << "and may be asked for again";
}

TEST_F(TraceEndpointTest, TheLastSecondsAreThereAtOnce) {
  start(true, true, true);
  while (ring_.written() < 20) std::this_thread::yield();
  const TestReply reply = get("?last=60");
  EXPECT_EQ(reply.status, 200);
  EXPECT_GE(std::stol(reply.body), 20) << reply.body;
  EXPECT_EQ(get("?seconds=0.1").status, 200);
  const uint64_t written = ring_.written();
  wait_turns(5);
  EXPECT_GT(ring_.written(), written) << "it goes on";
}

TEST_F(TraceEndpointTest, OneAtATimeAndAClientThatLeavesMakesRoom) {
  start(true);
  TestClient first(server_->port());
  ASSERT_TRUE(first.send("GET /debug/trace?seconds=60 HTTP/1.1\r\nhost: x\r\n\r\n"));
  while (ring_.written() == 0) std::this_thread::yield();
  const TestReply second = get("?seconds=1");
  EXPECT_EQ(second.status, 409);
  EXPECT_EQ(second.body, "a trace is being taken, one at a time: ask again when it is done");
  first.close();
  for (int i = 0; i < 3000; ++i) {
    if (get("?seconds=0.1").status == 200) return;
    std::this_thread::sleep_for(10ms);
  }
  FAIL() << "the place was not given back";
}

TEST_F(TraceEndpointTest, StopAnswersWithWhatThereIs) {
  start(true);
  TestClient client(server_->port());
  ASSERT_TRUE(client.send("GET /debug/trace?seconds=60 HTTP/1.1\r\nhost: x\r\n\r\n"));
  while (ring_.written() < 3) std::this_thread::yield();
  endpoint_->stop();
  const TestReply reply = client.receive();
  EXPECT_EQ(reply.status, 200);
  EXPECT_GE(std::stol(reply.body), 3);
  EXPECT_EQ(get("?seconds=1").status, 503);
}

// Of a server that nobody gave a form of refusals, as the metrics of an FFN rank.
TEST_F(TraceEndpointTest, AServerWithoutAFormOfRefusalsRefusesAsText) {
  start(true);
  const TestReply reply = TestClient(server_->port()).get("/");
  EXPECT_EQ(reply.status, 404);
  EXPECT_EQ(reply.body, "there is no /; this server has: GET /debug/trace\n");
}

}  // namespace
}  // namespace tandem
