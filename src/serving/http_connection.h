// HttpConnection: one client's connection: reads requests one after the other, lets the route's handler
// answer, and keeps a read pending meanwhile so that it notices a client that leaves. Internal to the HTTP
// server (it includes Asio). Everything here runs on the I/O thread, but for HttpReply, which posts to it.
#pragma once

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_set>

#include "serving/http_server.h"
#include "serving/http_stream.h"

namespace tandem {

class HttpConnection;
class HttpReply;

// What all connections of a server share. Lives as long as any of them.
struct HttpContext {
  boost::asio::io_context io{1};
  HttpServerOptions options;
  RouteTable routes;
  std::unordered_set<HttpConnection*> connections;  // I/O thread
  std::atomic<size_t> open_connections{0};
  std::shared_ptr<TlsContext> tls;  // null: plain
  bool draining = false;            // I/O thread
};

// The part of one exchange that both sides touch.
struct HttpReplyState {
  std::mutex mutex;
  bool complete = false;  // the handler has said everything
  bool gone = false;      // the client has left: nothing may be posted any more
  std::function<void()> on_disconnect;
  // Set before the handler runs:
  bool keep_alive = true, chunked = true, head_only = false;
  std::string request_id;
  HttpHeaders more_headers;  // of whatever reply: those that let a web page read it
};

class HttpConnection : public std::enable_shared_from_this<HttpConnection> {
 public:
  HttpConnection(boost::asio::ip::tcp::socket socket, std::shared_ptr<HttpContext> context);
  ~HttpConnection();

  void start();
  // Answers 503 and closes: the server has too many connections.
  void refuse();
  // Closes now if idle, otherwise after the reply.
  void drain();
  // Breaks off.
  void abort();

  // Bytes of the reply of the exchange `state`, dropped if it is no longer the current one. status 0: not a
  // head.
  void deliver(const std::shared_ptr<HttpReplyState>& state, const std::string& bytes, int status, bool last);
  void post_deliver(const std::shared_ptr<HttpReplyState>& state, std::string bytes, int status, bool last);

 private:
  struct Parser;
  enum class Wait { nothing, request, idle, write, linger };

  void read_more();
  void on_read(size_t bytes);
  void parse();
  // A header is there, and its body may not be yet. False: refused.
  bool take_header();
  void dispatch();
  // Answers what no route is asked for: wrong escapes, questions of browsers, missing keys. False: go on.
  bool answer_before_routes(const HttpRequest& request, bool path_ok, HttpReply& reply);
  std::shared_ptr<HttpReplyState> begin_exchange(bool keep_alive, bool http_1_1, bool head_only,
                                                 std::string id);
  void fail(int status, std::string message);
  // With the headers that go with the status.
  HttpResponse refusal(int status, std::string message, std::string_view path) const;
  void flush();
  void on_written(size_t bytes);
  void exchange_done();
  void record(bool disconnected);
  void linger();
  void peer_gone();
  void close();
  void arm(Wait wait, Duration duration);
  void on_timer();

  // Before what belongs to its io_context: a writer that outlives the server keeps the connection, which is
  // then the last to hold the context.
  std::shared_ptr<HttpContext> context_;
  std::unique_ptr<HttpStream> stream_;
  boost::asio::steady_timer timer_;
  std::string peer_;
  std::unique_ptr<Parser> parser_;
  Wait wait_ = Wait::nothing;

  char chunk_[16 << 10];  // one read
  std::string in_;        // received and not yet parsed
  std::string outgoing_;  // to be written after `writing_`
  std::string writing_;   // under the system's write
  bool reading_ = false, write_pending_ = false, lingering_ = false, closed_ = false;
  bool close_after_reply_ = false, header_seen_ = false, reply_last_ = false, streaming_ = false;

  std::shared_ptr<HttpReplyState> state_;  // the current exchange; null between requests
  HttpRecord record_;
  Instant exchange_start_;
};

}  // namespace tandem
