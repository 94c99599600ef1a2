#include "serving/http_client.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "serving/http_response_parser.h"
#include "serving/http_server.h"

namespace tandem {
namespace {

using namespace std::chrono_literals;

TEST(HttpUrl, TakesApartWhatPeopleWrite) {
  const HttpUrl url = parse_http_url("http://127.0.0.1:8000/v1/").value();
  EXPECT_EQ(url.host, "127.0.0.1");
  EXPECT_EQ(url.port, 8000);
  EXPECT_EQ(url.path, "/v1");
  EXPECT_EQ(url.origin(), "http://127.0.0.1:8000");
  EXPECT_EQ(parse_http_url("https://example.org").value().port, 443);
  EXPECT_EQ(parse_http_url("http://example.org").value().path, "");
  EXPECT_EQ(parse_http_url("http://[::1]:9").value().host, "::1");
  EXPECT_EQ(parse_http_url("http://[::1]:9").value().host_header(), "[::1]:9");
}

TEST(HttpUrl, RefusesTheRestByName) {
  for (const char* text : {"", "127.0.0.1:8000", "ftp://a", "http://", "http://a:0", "http://a:x",
                           "http://a:99999", "http://[::1", "http://me@a", "http://a/?b", "http://a b"}) {
    const auto url = parse_http_url(text);
    ASSERT_FALSE(url) << text;
    EXPECT_NE(url.error().message.find(std::string("'") + text + "'"), std::string::npos)
        << url.error().message;
  }
}

// What a parser makes of a response that comes in pieces of `step` bytes.
struct Parsed {
  int status = 0;
  std::string body;
  bool done = false, keeps = false;
  size_t left = 0;  // bytes behind the response
};
Parsed parse(std::string_view text, size_t step, bool end = false) {
  Parsed parsed;
  HttpResponseParser parser([&](int status, const HttpHeaders&) { parsed.status = status; },
                            [&](std::string_view piece) { parsed.body += piece; });
  while (!text.empty() && !parser.is_done()) {
    const std::string_view piece = text.substr(0, step);
    const auto used = parser.put(piece);
    if (!used) return parsed;
    text.remove_prefix(parser.is_done() ? *used : piece.size());
  }
  if (end) parsed.done = parser.put_end();
  parsed.done = parser.is_done();
  parsed.keeps = parser.keeps_alive();
  parsed.left = text.size();
  return parsed;
}

TEST(HttpResponseParser, EveryLengthOfPiecesGivesTheSame) {
  const std::string chunked =
      "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n7;x=y\r\n, world\r\n0\r\n\r\nREST";
  const std::string counted = "HTTP/1.1 429 Too Many\r\ncontent-length: 12\r\n\r\nhello, worldREST";
  for (size_t step = 1; step <= chunked.size(); ++step) {
    const Parsed a = parse(chunked, step);
    EXPECT_EQ(a.status, 200) << step;
    EXPECT_EQ(a.body, "hello, world") << step;
    EXPECT_TRUE(a.done && a.keeps) << step;
    EXPECT_EQ(a.left, 4u) << step;
    const Parsed b = parse(counted, step);
    EXPECT_EQ(b.status, 429) << step;
    EXPECT_EQ(b.body, "hello, world") << step;
    EXPECT_TRUE(b.done && b.keeps) << step;
    EXPECT_EQ(b.left, 4u) << step;
  }
}

TEST(HttpResponseParser, TheEndOfTheConnectionEndsABodyWithoutLengthAlone) {
  const Parsed open = parse("HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nall there is", 5, true);
  EXPECT_TRUE(open.done);
  EXPECT_FALSE(open.keeps);
  EXPECT_EQ(open.body, "all there is");
  EXPECT_FALSE(parse("HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\ncut", 5, true).done);
  EXPECT_FALSE(parse("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhel", 5, true).done);
  EXPECT_EQ(parse("SSH-2.0-OpenSSH\r\n\r\n", 5).status, 0);
}

TEST(EventReader, GivesEachEventWhateverThePieces) {
  const std::string stream =
      ": a comment\ndata: one\n\nevent: x\r\ndata:two\r\ndata: three\r\n\r\n\n\ndata: [DONE]\n\ndata: cut";
  for (size_t step = 1; step <= stream.size(); ++step) {
    std::vector<std::string> events;
    EventReader reader([&](std::string_view data) { events.emplace_back(data); });
    for (size_t at = 0; at < stream.size(); at += step) reader.put(std::string_view(stream).substr(at, step));
    EXPECT_EQ(events, (std::vector<std::string>{"one", "two\nthree", "[DONE]"})) << step;
  }
}

// Keeps what it is told.
class Recorder final : public HttpReplySink {
 public:
  void on_head(int status, const HttpHeaders& /*headers*/) override { status_ = status; }
  void on_body(std::string_view piece) override {
    const std::lock_guard lock(mutex_);
    body_ += piece;
    changed_.notify_all();
  }
  void on_end(const Status& status) override {
    const std::lock_guard lock(mutex_);
    ++ends_;
    end_ = status;
    changed_.notify_all();
  }
  bool wait_body(const std::string& text) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, 30s, [&] { return body_ == text; });
  }
  bool wait_end() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, 30s, [&] { return ends_ > 0; });
  }
  std::atomic<int> status_{0};
  Status end_;
  int ends_ = 0;
  std::string body_;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
};

class HttpClientTest : public ::testing::Test {
 protected:
  void start(HttpServerOptions options = {}, HttpClientOptions client = {}) {
    options.port = 0;
    options.error_response = [](int status, std::string message, std::string_view /*path*/) {
      return HttpResponse{.status = status, .content_type = "text/plain", .body = std::move(message)};
    };
    RouteTable routes;
    routes.add("POST", "/base/echo",
               [](auto request, auto reply) { reply->respond({.status = 201, .body = request->body}); });
    routes.add("GET", "/base/hold", [this](auto, auto reply) {
      const std::lock_guard lock(mutex_);
      held_ = reply;
      changed_.notify_all();
    });
    auto server = HttpServer::start(std::move(options), std::move(routes));
    ASSERT_TRUE(server) << server.error().message;
    server_ = std::move(*server);
    connect(server_->url() + "/base", client);
  }
  void connect(const std::string& url, HttpClientOptions options = {}) {
    client_ = HttpClient::create(parse_http_url(url).value(), options).value();
  }
  std::shared_ptr<ResponseWriter> take_held() {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, 30s, [&] { return held_ != nullptr; });
    return std::move(held_);
  }

  std::unique_ptr<HttpServer> server_;
  std::unique_ptr<HttpClient> client_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::shared_ptr<ResponseWriter> held_;
};

TEST_F(HttpClientTest, OneAfterAnotherShareAConnection) {
  start();
  const std::string large(3 << 20, 'x');
  for (int i = 0; i < 5; ++i) {
    const auto reply =
        client_->fetch({.method = "POST", .path = "/echo", .body = i == 2 ? large : std::to_string(i)});
    ASSERT_TRUE(reply) << reply.error().message;
    EXPECT_EQ(reply->status, 201);
    EXPECT_EQ(reply->body, i == 2 ? large : std::to_string(i));
  }
  EXPECT_EQ(server_->open_connections(), 1u);
  EXPECT_EQ(client_->fetch({.path = "/nothing"})->status, 404);
}

TEST_F(HttpClientTest, ManyAtOnceEachGetTheirOwn) {
  start();
  std::vector<std::shared_ptr<Recorder>> sinks;
  for (int i = 0; i < 200; ++i) {
    sinks.push_back(std::make_shared<Recorder>());
    client_->send({.method = "POST", .path = "/echo", .body = "body " + std::to_string(i)}, sinks.back());
  }
  for (int i = 0; i < 200; ++i) {
    ASSERT_TRUE(sinks[static_cast<size_t>(i)]->wait_end());
    EXPECT_EQ(sinks[static_cast<size_t>(i)]->body_, "body " + std::to_string(i));
    EXPECT_TRUE(sinks[static_cast<size_t>(i)]->end_);
  }
}

TEST_F(HttpClientTest, PiecesOfAStreamComeAsTheyAreSent) {
  start();
  const auto sink = std::make_shared<Recorder>();
  client_->send({.path = "/hold"}, sink);
  const auto writer = take_held();
  ASSERT_TRUE(writer);
  writer->start_stream({.content_type = "text/event-stream", .body = "a"});
  EXPECT_TRUE(sink->wait_body("a"));
  writer->write("b");
  EXPECT_TRUE(sink->wait_body("ab"));
  writer->finish();
  EXPECT_TRUE(sink->wait_end());
  EXPECT_TRUE(sink->end_);
}

// A server by hand: each connection gets one reply and is closed, at once or when another request has come.
class ClosingServer {
 public:
  ClosingServer() {
    sockaddr_in address{
        .sin_family = AF_INET, .sin_port = 0, .sin_addr = {htonl(INADDR_LOOPBACK)}, .sin_zero = {}};
    socklen_t size = sizeof address;
    listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    EXPECT_EQ(bind(listener_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(listen(listener_, 8), 0);
    EXPECT_EQ(getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    url_ = "http://127.0.0.1:" + std::to_string(ntohs(address.sin_port));
    thread_ = std::thread([this] { run(); });
  }
  ~ClosingServer() {
    shutdown(listener_, SHUT_RDWR);
    thread_.join();
    close(listener_);
  }
  const std::string& url() const { return url_; }

 private:
  void run() {
    for (int number = 0;; ++number) {
      const int fd = accept(listener_, nullptr, nullptr);
      if (fd < 0) return;
      char request[1024];
      const std::string reply = "HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n" + std::to_string(number);
      if (recv(fd, request, sizeof request, 0) > 0) send(fd, reply.data(), reply.size(), MSG_NOSIGNAL);
      // Even ones read what is asked next, and say nothing.
      if (number % 2 == 0) (void)!recv(fd, request, sizeof request, 0);
      close(fd);
    }
  }

  int listener_ = -1;
  std::string url_;
  std::thread thread_;
};

TEST_F(HttpClientTest, AKeptConnectionThatTheServerClosesIsReplaced) {
  ClosingServer server;
  connect(server.url());
  for (int i = 0; i < 8; ++i) {
    const auto reply = client_->fetch({.path = "/"});
    ASSERT_TRUE(reply) << i << " " << reply.error().message;
    EXPECT_EQ(reply->body, std::to_string(i)) << "each on a connection of its own";
  }
  client_.reset();
}

TEST_F(HttpClientTest, AServerThatBreaksOffOrIsNotThereIsNamed) {
  start();
  const std::string url = server_->url();
  const auto sink = std::make_shared<Recorder>();
  client_->send({.path = "/hold"}, sink);
  auto writer = take_held();
  writer->start_stream({.body = "half"});
  EXPECT_TRUE(sink->wait_body("half"));
  writer.reset();  // breaks off
  ASSERT_TRUE(sink->wait_end());
  ASSERT_FALSE(sink->end_);
  EXPECT_EQ(sink->end_.error().code, ErrorCode::unavailable);
  EXPECT_NE(sink->end_.error().message.find(url), std::string::npos) << sink->end_.error().message;

  server_.reset();
  const auto reply = client_->fetch({.path = "/hold"});
  ASSERT_FALSE(reply);
  EXPECT_EQ(reply.error().code, ErrorCode::unavailable);
  EXPECT_NE(reply.error().message.find("is the server running there?"), std::string::npos)
      << reply.error().message;
}

TEST_F(HttpClientTest, SilenceEndsARequest) {
  start({}, {.silence_timeout = 50ms});
  const auto reply = client_->fetch({.path = "/hold"});
  ASSERT_FALSE(reply);
  EXPECT_EQ(reply.error().code, ErrorCode::deadline_exceeded);
}

TEST_F(HttpClientTest, WhatIsOpenAtTheEndHearsOfItOnce) {
  start();
  const auto sink = std::make_shared<Recorder>();
  client_->send({.path = "/hold"}, sink);
  const auto writer = take_held();
  client_.reset();
  EXPECT_EQ(sink->ends_, 1);
  ASSERT_FALSE(sink->end_);
  EXPECT_EQ(sink->end_.error().code, ErrorCode::cancelled);
}

}  // namespace
}  // namespace tandem
