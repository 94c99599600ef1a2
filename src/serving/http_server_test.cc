#include "serving/http_server.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <mutex>
#include <thread>

#include "serving/http_test_client.h"

namespace tandem {
namespace {

using namespace std::chrono_literals;

// A server whose /hold route hands its writer to the test.
class HttpServerTest : public ::testing::Test {
 protected:
  using Held = std::pair<std::shared_ptr<HttpRequest>, std::shared_ptr<ResponseWriter>>;

  void start(HttpServerOptions options = {}) {
    options.port = 0;
    options.error_response = [](int status, std::string message, std::string_view /*path*/) {
      return HttpResponse{.status = status, .content_type = "text/plain", .body = std::move(message)};
    };
    options.on_complete = [this](const HttpRecord& record) {
      const std::lock_guard lock(mutex_);
      records_.push_back(record);
    };
    RouteTable routes;
    routes.add("POST", "/echo", [](auto request, auto reply) {
      reply->respond({.content_type = "text/plain", .body = request->body + "|" + request->query});
    });
    routes.add("GET", "/item/*", [](auto request, auto reply) {
      reply->respond({.body = std::string(route_parameter("/item/*", request->path))});
    });
    routes.add("GET", "/drop", [](auto, auto) {});
    routes.add("GET", "/hold", [this](auto request, auto reply) {
      const std::lock_guard lock(mutex_);
      held_.set_value({request, reply});
    });
    auto server = HttpServer::start(std::move(options), std::move(routes));
    ASSERT_TRUE(server) << server.error().message;
    server_ = std::move(*server);
  }

  Held take_held() {
    auto future = held_.get_future();
    if (future.wait_for(30s) != std::future_status::ready) return {};
    Held held = future.get();
    const std::lock_guard lock(mutex_);
    held_ = {};
    return held;
  }

  std::vector<HttpRecord> wait_records(size_t count) {
    for (int i = 0; i < 3000; ++i) {
      {
        const std::lock_guard lock(mutex_);
        if (records_.size() >= count) return records_;
      }
      std::this_thread::sleep_for(10ms);
    }
    return {};
  }

  uint16_t port() const { return server_->port(); }

  std::mutex mutex_;
  std::promise<Held> held_;
  std::vector<HttpRecord> records_;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpServerTest, KeepsAConnectionForSeveralRequests) {
  start();
  TestClient client(port());
  for (int i = 0; i < 3; ++i) {
    const TestReply reply = client.post("/echo?a=" + std::to_string(i), "body");
    EXPECT_EQ(reply.status, 200);
    EXPECT_EQ(reply.body, "body|a=" + std::to_string(i));
    EXPECT_EQ(reply.headers.at("connection"), "keep-alive");
    EXPECT_TRUE(reply.headers.contains("x-request-id"));
  }
  EXPECT_EQ(wait_records(3)[2].route, "/echo");
}

TEST_F(HttpServerTest, AnswersPipelinedRequestsInOrder) {
  start();
  TestClient client(port());
  client.send(test_request("POST", "/echo", "one") + test_request("POST", "/echo", "two") +
              test_request("POST", "/echo", "three"));
  EXPECT_EQ(client.receive().body, "one|");
  EXPECT_EQ(client.receive().body, "two|");
  EXPECT_EQ(client.receive().body, "three|");
}

TEST_F(HttpServerTest, PassesOverEmptyLinesBetweenRequests) {
  start();
  TestClient client(port());
  for (int i = 0; i < 2; ++i) {
    client.send(test_request("POST", "/echo", "one") + "\r\n\r");
    EXPECT_EQ(client.receive().body, "one|");
    client.send("\n");
  }
}

TEST_F(HttpServerTest, TakesARequestByteByByte) {
  start();
  TestClient client(port());
  for (const char c : test_request("POST", "/echo", "slow")) client.send(std::string_view(&c, 1));
  EXPECT_EQ(client.receive().body, "slow|");
}

TEST_F(HttpServerTest, ReadsAChunkedBodyAndAnswersExpect) {
  start();
  TestClient client(port());
  client.send("POST /echo HTTP/1.1\r\nhost: t\r\ntransfer-encoding: chunked\r\nexpect: 100-continue\r\n\r\n");
  EXPECT_NE(client.receive_until("\r\n\r\n").find("100 Continue"), std::string::npos);
  client.send("3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n");
  EXPECT_EQ(client.receive().body, "abcde|");
}

TEST_F(HttpServerTest, RoutesByMethodAndPath) {
  start();
  TestClient client(port());
  EXPECT_EQ(client.get("/item/a%2Fb/c").body, "a/b/c");
  EXPECT_EQ(client.get("/item/").status, 404);
  const TestReply unknown = client.get("/nothing");
  EXPECT_EQ(unknown.status, 404);
  EXPECT_NE(unknown.body.find("/nothing"), std::string::npos);
  EXPECT_NE(unknown.body.find("POST /echo"), std::string::npos);
  const TestReply wrong = client.get("/echo");
  EXPECT_EQ(wrong.status, 405);
  EXPECT_EQ(wrong.headers.at("allow"), "POST");
  EXPECT_EQ(client.get("/item/%zz").status, 400);
}

TEST_F(HttpServerTest, HeadHasNoBody) {
  start();
  TestClient client(port());
  client.send("HEAD /item/abc HTTP/1.1\r\nhost: t\r\n\r\n");
  const TestReply reply = client.receive(true);
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.headers.at("content-length"), "3");
  EXPECT_EQ(client.get("/item/x").body, "x");
}

TEST_F(HttpServerTest, RefusesWhatIsTooLargeOrMalformed) {
  start({.max_header_bytes = 1024, .max_body_bytes = 100});
  {
    TestClient client(port());
    const TestReply reply = client.post("/echo", std::string(101, 'x'));
    EXPECT_EQ(reply.status, 413);
    EXPECT_NE(reply.body.find("100 bytes"), std::string::npos);
    EXPECT_EQ(reply.headers.at("connection"), "close");
  }
  {
    TestClient client(port());
    client.send("POST /echo HTTP/1.1\r\nhost: t\r\ntransfer-encoding: chunked\r\n\r\n65\r\n" +
                std::string(0x65, 'x'));
    EXPECT_EQ(client.receive().status, 413);
  }
  {
    TestClient client(port());
    EXPECT_EQ(client.get("/echo", "x: " + std::string(2000, 'y') + "\r\n").status, 431);
  }
  for (const char* junk :
       {"\x16\x03\x01\x02", "GET\r\n\r\n", "GET / HTTP/9.9\r\n\r\n",
        "POST /echo HTTP/1.1\r\ncontent-length: -1\r\n\r\n",
        "POST /echo HTTP/1.1\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n",
        "POST /echo HTTP/1.1\r\ntransfer-encoding: gzip\r\n\r\nGET /item/smuggled HTTP/1.1\r\n\r\n",
        "POST /echo HTTP/1.1\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n"}) {
    TestClient client(port());
    client.send(junk);
    EXPECT_EQ(client.receive().status, 400) << junk;
    EXPECT_TRUE(client.closed_by_server());
  }
  TestClient client(port());
  EXPECT_EQ(client.post("/echo", std::string(100, 'x')).status, 200);
}

// Who has no key must not make the server hold 32 MiB for each connection.
TEST_F(HttpServerTest, ABodyWithoutAKeyIsNotWaitedFor) {
  start({.access = {.api_keys = {"key"}, .allowed_origins = {"http://page"}}});
  const std::string head = "POST /echo HTTP/1.1\r\nhost: t\r\norigin: http://page\r\ncontent-length: 3\r\n";
  TestClient client(port());
  client.send(head + "expect: 100-continue\r\n\r\n");
  const TestReply refused = client.receive();
  EXPECT_EQ(refused.status, 401);
  EXPECT_EQ(refused.headers.at("www-authenticate"), "Bearer");
  EXPECT_EQ(refused.headers.at("connection"), "close");
  EXPECT_EQ(refused.headers.at("access-control-allow-origin"), "http://page");
  EXPECT_TRUE(client.closed_by_server());
  TestClient other(port());
  other.send(head + "authorization: Bearer key\r\n\r\n");
  other.send("abc");
  EXPECT_EQ(other.receive().body, "abc|");
  const HttpRecord record = wait_records(1)[0];
  EXPECT_EQ(record.method + " " + record.path, "POST /echo");
}

TEST_F(HttpServerTest, ARequestThatDoesNotArriveTimesOut) {
  start({.request_timeout = 50ms});
  TestClient client(port());
  client.send("GET /it");
  EXPECT_EQ(client.receive().status, 408);
}

TEST_F(HttpServerTest, AnIdleConnectionIsClosedSilently) {
  start({.idle_timeout = 50ms});
  TestClient client(port());
  EXPECT_TRUE(client.closed_by_server());
}

TEST_F(HttpServerTest, KeepsAUsableRequestIdAndReplacesAnother) {
  start();
  TestClient client(port());
  EXPECT_EQ(client.get("/item/x", "x-request-id: abc-1.2\r\n").headers.at("x-request-id"), "abc-1.2");
  EXPECT_TRUE(client.get("/item/x", "x-request-id: a b\r\n").headers.at("x-request-id").starts_with("req-"));
}

TEST_F(HttpServerTest, StreamsChunksAsTheyAreWritten) {
  start();
  TestClient client(port());
  client.send("GET /hold HTTP/1.1\r\nhost: t\r\n\r\n");
  auto [request, reply] = take_held();
  ASSERT_TRUE(reply);
  reply->start_stream({.content_type = "text/event-stream", .body = "first"});
  EXPECT_NE(client.receive_until("first").find("transfer-encoding: chunked"), std::string::npos);
  reply->write("second");
  EXPECT_NE(client.receive_until("second").find("second"), std::string::npos);
  reply->write("");  // must not end the stream
  reply->finish();
  const TestReply got = client.receive();
  EXPECT_TRUE(got.complete);
  EXPECT_EQ(got.body, "firstsecond");
  EXPECT_EQ(client.get("/item/x").body, "x");  // the connection goes on
}

TEST_F(HttpServerTest, AnHttp10StreamEndsWithTheConnection) {
  start();
  for (const char* wish : {"", "connection: keep-alive\r\n"}) {
    TestClient client(port());
    client.send(std::string("GET /hold HTTP/1.0\r\n") + wish + "\r\n");
    auto [request, reply] = take_held();
    reply->start_stream({.body = "a"});
    reply->write("b");
    reply->finish();
    const TestReply got = client.receive();
    EXPECT_FALSE(got.headers.contains("transfer-encoding"));
    EXPECT_EQ(got.headers.at("connection"), "close");
    EXPECT_EQ(got.body, "ab");
  }
}

TEST_F(HttpServerTest, AnHttp10ConnectionIsKeptWhereTheReplyHasALength) {
  start();
  TestClient client(port());
  for (int i = 0; i < 2; ++i) {
    client.send("GET /item/x HTTP/1.0\r\nconnection: keep-alive\r\n\r\n");
    const TestReply got = client.receive();
    EXPECT_EQ(got.headers.at("connection"), "keep-alive");
    EXPECT_EQ(got.body, "x");
  }
}

TEST_F(HttpServerTest, NoticesAClientThatLeaves) {
  start();
  for (const bool in_stream : {false, true}) {
    auto client = std::make_unique<TestClient>(port());
    client->send("GET /hold HTTP/1.1\r\nhost: t\r\n\r\n");
    auto [request, reply] = take_held();
    std::promise<void> left;
    std::atomic<int> calls{0};
    reply->on_disconnect([&] {
      if (calls.fetch_add(1) == 0) left.set_value();
    });
    if (in_stream) reply->start_stream({.body = "x"});
    client.reset();
    ASSERT_EQ(left.get_future().wait_for(30s), std::future_status::ready);
    reply->write("into the void");
    reply->finish();
    reply.reset();
    EXPECT_EQ(calls, 1);
  }
  const auto records = wait_records(2);
  ASSERT_EQ(records.size(), 2u);
  EXPECT_TRUE(records[0].disconnected);
  EXPECT_EQ(records[0].status, 499);
  EXPECT_EQ(records[1].status, 200);
  EXPECT_TRUE(records[1].disconnected);
}

TEST_F(HttpServerTest, ADisconnectAfterTheReplyIsNobodysBusiness) {
  start();
  auto client = std::make_unique<TestClient>(port());
  client->send("GET /hold HTTP/1.1\r\nhost: t\r\n\r\n");
  auto [request, reply] = take_held();
  std::atomic<bool> called{false};
  reply->on_disconnect([&] { called = true; });
  reply->respond({.body = "done"});
  EXPECT_EQ(client->receive().body, "done");
  client.reset();
  TestClient other(port());
  EXPECT_EQ(other.get("/item/x").status, 200);
  other.close();
  server_->stop(10s);
  EXPECT_FALSE(called);
  EXPECT_FALSE(wait_records(2)[0].disconnected);
}

TEST_F(HttpServerTest, ADroppedWriterAnswers500OrBreaksTheStreamOff) {
  start();
  TestClient client(port());
  EXPECT_EQ(client.get("/drop").status, 500);
  client.send("GET /hold HTTP/1.1\r\nhost: t\r\n\r\n");
  auto [request, reply] = take_held();
  reply->start_stream({.body = "half"});
  reply.reset();
  const TestReply got = client.receive();
  EXPECT_EQ(got.body, "half");
  EXPECT_FALSE(got.complete);
}

TEST_F(HttpServerTest, AClientThatDoesNotReadIsDroppedNotBuffered) {
  start({.max_stream_backlog_bytes = 1 << 20});
  TestClient client(port());
  client.send("GET /hold HTTP/1.1\r\nhost: t\r\n\r\n");
  auto [request, reply] = take_held();
  std::promise<void> left;
  reply->on_disconnect([&] { left.set_value(); });
  reply->start_stream({.body = ""});
  auto gone = left.get_future();
  // The system's own buffers take some megabytes first.
  for (int i = 0; i < 1000 && gone.wait_for(1ms) != std::future_status::ready; ++i) {
    reply->write(std::string(64 << 10, 'x'));
  }
  EXPECT_EQ(gone.wait_for(30s), std::future_status::ready);
}

TEST_F(HttpServerTest, ATakenPortIsNamedWithTheRemedy) {
  start();
  HttpServerOptions options;
  options.port = port();
  const auto second = HttpServer::start(std::move(options), {});
  ASSERT_FALSE(second);
  EXPECT_NE(second.error().message.find("port " + std::to_string(port()) + " is taken"), std::string::npos);
  EXPECT_NE(second.error().message.find("--port 0"), std::string::npos);
}

TEST_F(HttpServerTest, RefusesConnectionsAboveTheLimit) {
  start({.max_connections = 2});
  TestClient first(port()), second(port());
  EXPECT_EQ(first.get("/item/x").status, 200);
  EXPECT_EQ(second.get("/item/x").status, 200);
  TestClient third(port());
  EXPECT_EQ(third.get("/item/x").status, 503);
  third.close();
  first.close();
  for (int i = 0; i < 3000 && server_->open_connections() > 1; ++i) std::this_thread::sleep_for(10ms);
  TestClient fourth(port());
  EXPECT_EQ(fourth.get("/item/x").status, 200);
}

TEST_F(HttpServerTest, StopDrainsOpenReplies) {
  start();
  TestClient idle(port()), busy(port());
  EXPECT_EQ(idle.get("/item/x").status, 200);
  busy.send("GET /hold HTTP/1.1\r\nhost: t\r\n\r\n");
  auto [request, reply] = take_held();
  reply->start_stream({.body = "a"});
  std::thread stopping([&] { server_->stop(60s); });
  EXPECT_TRUE(idle.closed_by_server());
  EXPECT_FALSE(TestClient(port()).connected() && TestClient(port()).get("/item/x").status != 0);
  reply->write("b");
  reply->finish();
  const TestReply got = busy.receive();
  EXPECT_TRUE(got.complete);
  EXPECT_EQ(got.body, "ab");
  busy.close();
  stopping.join();
}

TEST_F(HttpServerTest, StopBreaksOffWhatDoesNotEnd) {
  start();
  TestClient busy(port());
  busy.send("GET /hold HTTP/1.1\r\nhost: t\r\n\r\n");
  auto [request, reply] = take_held();
  bool left = false;
  reply->on_disconnect([&] { left = true; });
  server_->stop(20ms);
  EXPECT_TRUE(left);
  EXPECT_EQ(busy.receive().status, 0);
  reply->respond({.body = "too late"});
}

TEST_F(HttpServerTest, AWriterMayOutliveTheServer) {
  start();
  TestClient client(port());
  client.send("GET /hold HTTP/1.1\r\nhost: t\r\n\r\n");
  auto [request, reply] = take_held();
  reply->start_stream({.body = "a"});
  EXPECT_NE(client.receive_until("a\r\n").find("200 OK"), std::string::npos);
  server_.reset();
  reply->write("into the void");
  reply->on_disconnect([] {});
  reply.reset();  // the last to know the connection, and all that it needs
}

TEST_F(HttpServerTest, HoldsHundredsOfStreams) {
  start();
  constexpr int kStreams = 300;
  std::vector<std::unique_ptr<TestClient>> clients;
  std::vector<std::shared_ptr<ResponseWriter>> replies;
  for (int i = 0; i < kStreams; ++i) {
    clients.push_back(std::make_unique<TestClient>(port()));
    clients.back()->send("GET /hold HTTP/1.1\r\nhost: t\r\n\r\n");
    replies.push_back(take_held().second);
    ASSERT_TRUE(replies.back());
    replies.back()->start_stream({.body = std::to_string(i)});
  }
  for (int round = 0; round < 10; ++round) {
    for (auto& reply : replies) reply->write(".");
  }
  TestClient other(port());
  EXPECT_EQ(other.get("/item/alive").body, "alive");
  for (auto& reply : replies) reply->finish();
  for (int i = 0; i < kStreams; ++i) EXPECT_EQ(clients[i]->receive().body, std::to_string(i) + "..........");
}

}  // namespace
}  // namespace tandem
