#include "serving/http_client.h"

#include <boost/asio/connect.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <future>
#include <thread>
#include <unordered_set>
#include <utility>
#include <vector>

#include "serving/http_response_parser.h"
#include "serving/http_stream.h"

namespace tandem {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

namespace {

// One request on its way. The head and the body as they are written.
struct Exchange {
  std::string bytes;
  std::shared_ptr<HttpReplySink> sink;
};

class Connection;

// What the connections of a client share. I/O thread.
struct Shared {
  HttpUrl url;
  HttpClientOptions options;
  std::shared_ptr<TlsContext> tls;  // null: plain
  std::vector<std::shared_ptr<Connection>> idle;
  std::unordered_set<Connection*> all;
  bool stopping = false;
  asio::io_context io{1};
};

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  explicit Connection(Shared& shared) : shared_(shared), resolver_(shared.io), timer_(shared.io) {
    shared_.all.insert(this);
  }
  ~Connection() { shared_.all.erase(this); }

  // Opens the connection if there is none yet, and sends.
  void begin(Exchange exchange) {
    exchange_ = std::move(exchange);
    open_ = true;
    sent_ = 0;
    parser_ = std::make_unique<HttpResponseParser>(
        [this](int status, const HttpHeaders& headers) { exchange_.sink->on_head(status, headers); },
        [this](std::string_view piece) { exchange_.sink->on_body(piece); });
    if (stream_) return write();
    watch(shared_.options.connect_timeout);
    resolver_.async_resolve(shared_.url.host, std::to_string(shared_.url.port),
                            [self = shared_from_this()](const error_code& ec, const auto& found) {
                              if (!self->open_) return;
                              if (ec) return self->fail_connect(ec);
                              self->connect(found);
                            });
  }

  // The server may close a kept connection at any time, which a read notices.
  void rest() {
    reused_ = true;
    watch_nothing();
    read();
  }

  void abort(const Error& error) {
    if (open_) finish(std::unexpected(error));
    close();
  }

 private:
  void connect(const tcp::resolver::results_type& found) {
    auto socket = std::make_shared<tcp::socket>(shared_.io);
    connecting_ = socket;
    asio::async_connect(*socket, found,
                        [self = shared_from_this(), socket](const error_code& ec, const tcp::endpoint&) {
                          self->connecting_.reset();
                          if (!self->open_) return;
                          if (ec) return self->fail_connect(ec);
                          error_code ignored;
                          socket->set_option(tcp::no_delay(true), ignored);
                          self->stream_ = make_stream(std::move(*socket), self->shared_.tls.get());
                          self->handshake();
                        });
  }

  void handshake() {
    stream_->handshake([self = shared_from_this()](const error_code& ec, size_t) {
      if (!self->open_) return;
      if (ec) return self->fail_connect(ec);
      self->read();
      self->write();
    });
  }

  void write() {
    watch(shared_.options.silence_timeout);
    if (sent_ == exchange_.bytes.size()) return;
    stream_->write_some(asio::buffer(exchange_.bytes.data() + sent_, exchange_.bytes.size() - sent_),
                        [self = shared_from_this()](const error_code& ec, size_t bytes) {
                          // A server that refuses a long body may close before all of it is sent: its reply
                          // is still to be read.
                          if (!self->open_ || ec) return;
                          self->sent_ += bytes;
                          self->write();
                        });
  }

  void read() {
    if (reading_ || closed_) return;
    reading_ = true;
    stream_->read_some(asio::buffer(chunk_), [self = shared_from_this()](const error_code& ec, size_t bytes) {
      self->reading_ = false;
      if (self->closed_) return;
      if (!self->open_) return self->close();  // kept, and now closed by the server
      if (ec) return self->ended(ec);
      self->take({self->chunk_, bytes});
    });
  }

  void take(std::string_view bytes) {
    watch(shared_.options.silence_timeout);
    const auto used = parser_->put(bytes);
    if (!used) {
      finish(std::unexpected(used.error()));
      return close();
    }
    if (!parser_->is_done()) return read();
    // A reply that came before the request was all sent ends the connection with it.
    const bool keeps = parser_->keeps_alive() && *used == bytes.size() && sent_ == exchange_.bytes.size() &&
                       !shared_.stopping;
    if (keeps) {
      // Into the pool before the sink hears: it may send the next request at once.
      shared_.idle.push_back(shared_from_this());
      rest();
    }
    finish({});
    if (!keeps) close();
  }

  void ended(const error_code& ec) {
    if (parser_->put_end()) {
      finish({});
      return close();
    }
    if (reused_ && !parser_->got_some() && !shared_.stopping) {
      Exchange again = std::move(exchange_);
      open_ = false;
      close();
      return std::make_shared<Connection>(shared_)->begin(std::move(again));
    }
    finish(
        make_error(ErrorCode::unavailable,
                   shared_.url.origin() + ": the connection ended before the reply (" + ec.message() + ")"));
    close();
  }

  void fail_connect(const error_code& ec) {
    finish(make_error(ErrorCode::unavailable, shared_.url.origin() + ": no connection (" + ec.message() +
                                                  "); is the server running there?"));
    close();
  }

  void finish(const Status& status) {
    open_ = false;
    const std::shared_ptr<HttpReplySink> sink = std::move(exchange_.sink);
    exchange_ = {};
    sink->on_end(status);
  }

  void close() {
    if (closed_) return;
    closed_ = true;
    watch_nothing();
    resolver_.cancel();
    error_code ignored;
    if (connecting_) connecting_->close(ignored);
    if (stream_) stream_->socket().close(ignored);
    std::erase_if(shared_.idle, [this](const auto& kept) { return kept.get() == this; });
  }

  // One timer that is looked at when it rings: setting it anew for each token would cost more than the
  // token.
  void watch(Duration limit) {
    last_ = now();
    if (watching_ && limit == limit_) return;
    limit_ = limit;
    watching_ = true;
    wait(limit);
  }
  void watch_nothing() {
    limit_ = Duration::max();
    watching_ = false;
    timer_.cancel();
  }
  void wait(Duration duration) {
    timer_.expires_after(duration);
    timer_.async_wait([self = shared_from_this()](const error_code& ec) {
      if (ec || !self->open_ || !self->watching_) return;
      const Duration silent = now() - self->last_;
      if (silent < self->limit_) return self->wait(self->limit_ - silent);
      const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(self->limit_).count();
      self->abort({ErrorCode::deadline_exceeded,
                   self->shared_.url.origin() + ": no answer within " + std::to_string(seconds) + " s"});
    });
  }

  Shared& shared_;
  tcp::resolver resolver_;
  asio::steady_timer timer_;
  std::shared_ptr<tcp::socket> connecting_;
  std::unique_ptr<HttpStream> stream_;
  std::unique_ptr<HttpResponseParser> parser_;
  Exchange exchange_;
  size_t sent_ = 0;
  Instant last_{};
  Duration limit_{};
  bool open_ = false;  // an exchange is under way
  bool reading_ = false, closed_ = false, reused_ = false, watching_ = false;
  char chunk_[16 << 10];  // one read
};

std::string request_bytes(const HttpUrl& url, const HttpClientRequest& request) {
  std::string out = request.method + " " + url.path + request.path +
                    " HTTP/1.1\r\nhost: " + url.host_header() + "\r\naccept: */*\r\n";
  for (const auto& [name, value] : request.headers) out += name + ": " + value + "\r\n";
  if (!request.body.empty() || request.method != "GET")
    out += "content-length: " + std::to_string(request.body.size()) + "\r\n";
  return out + "\r\n" + request.body;
}

// For fetch: all of a reply, for a thread that waits.
class WholeReply final : public HttpReplySink {
 public:
  void on_head(int status, const HttpHeaders& headers) override {
    reply_.status = status;
    reply_.headers = headers;
  }
  void on_body(std::string_view piece) override { reply_.body.append(piece); }
  void on_end(const Status& status) override {
    if (status) {
      promise_.set_value(std::move(reply_));
    } else {
      promise_.set_value(std::unexpected(status.error()));
    }
  }
  Result<HttpClientReply> wait() { return promise_.get_future().get(); }

 private:
  HttpClientReply reply_;
  std::promise<Result<HttpClientReply>> promise_;
};

}  // namespace

class HttpClient::Impl {
 public:
  Shared shared;
  asio::executor_work_guard<asio::io_context::executor_type> work{shared.io.get_executor()};
  std::thread thread;

  void begin(Exchange exchange) {
    if (shared.stopping)
      return exchange.sink->on_end(make_error(ErrorCode::cancelled, "the HTTP client is being stopped"));
    if (shared.idle.empty()) return std::make_shared<Connection>(shared)->begin(std::move(exchange));
    // The one that was used last: the server has had the least time to close it.
    const std::shared_ptr<Connection> kept = std::move(shared.idle.back());
    shared.idle.pop_back();
    kept->begin(std::move(exchange));
  }

  void stop() {
    shared.stopping = true;
    const std::vector<Connection*> open(shared.all.begin(), shared.all.end());
    std::vector<std::shared_ptr<Connection>> held;
    for (Connection* connection : open) {
      if (auto alive = connection->weak_from_this().lock()) held.push_back(std::move(alive));
    }
    for (const auto& connection : held)
      connection->abort({ErrorCode::cancelled, "the HTTP client is being stopped"});
    work.reset();
  }
};

HttpClient::HttpClient(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Result<std::unique_ptr<HttpClient>> HttpClient::create(HttpUrl url, HttpClientOptions options) {
  auto impl = std::make_unique<Impl>();
  if (url.is_tls) {
    TANDEM_ASSIGN(impl->shared.tls, TlsContext::for_client(url.host));
  }
  impl->shared.url = std::move(url);
  impl->shared.options = options;
  impl->thread = std::thread([io = &impl->shared.io] { io->run(); });
  return std::unique_ptr<HttpClient>(new HttpClient(std::move(impl)));
}

HttpClient::~HttpClient() {
  asio::post(impl_->shared.io, [impl = impl_.get()] { impl->stop(); });
  impl_->thread.join();
}

const HttpUrl& HttpClient::url() const {
  return impl_->shared.url;
}

void HttpClient::send(HttpClientRequest request, std::shared_ptr<HttpReplySink> sink) {
  auto exchange =
      std::make_shared<Exchange>(Exchange{request_bytes(impl_->shared.url, request), std::move(sink)});
  asio::post(impl_->shared.io, [impl = impl_.get(), exchange] { impl->begin(std::move(*exchange)); });
}

Result<HttpClientReply> HttpClient::fetch(HttpClientRequest request) {
  auto whole = std::make_shared<WholeReply>();
  send(std::move(request), whole);
  return whole->wait();
}

}  // namespace tandem
