#include "serving/http_connection.h"

#include <netinet/tcp.h>
#include <sys/socket.h>

#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <random>
#include <utility>

#include "base/log.h"
#include "serving/http_reply.h"

namespace tandem {

namespace http = boost::beast::http;
using boost::system::error_code;

namespace {

// Requests that a client sends ahead of the current reply: bounded, and enough for any sane pipelining.
constexpr size_t kMaxPipelinedBytes = 64 << 10;
// After the last reply a client may still be sending a body that was refused; closing at once would reset the
// connection and could destroy the reply on its way.
constexpr Duration kLingerTime = std::chrono::seconds(2);
// A peer that vanished without a word while nothing is being sent: probes after 30 s, three of them, 10 s
// apart.
constexpr int kKeepAliveIdleSeconds = 30, kKeepAliveIntervalSeconds = 10, kKeepAliveProbes = 3;

constexpr const char* kNoKey =
    "an API key is needed: send \"Authorization: Bearer KEY\" with one that this server was started with";

std::string make_request_id() {
  static thread_local std::mt19937_64 random{std::random_device{}()};
  constexpr char kDigits[] = "0123456789abcdef";
  std::string id = "req-";
  const uint64_t bits = random();
  for (int shift = 60; shift >= 0; shift -= 4) id.push_back(kDigits[(bits >> shift) & 15]);
  return id;
}

// Letters that are safe in a header and in a log line.
bool usable_request_id(std::string_view id) {
  if (id.empty() || id.size() > 128) return false;
  for (const char c : id) {
    const bool plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (!plain && std::string_view("-_.:/+=").find(c) == std::string_view::npos) return false;
  }
  return true;
}

void set_socket_options(boost::asio::ip::tcp::socket& socket) {
  error_code ignored;
  socket.set_option(boost::asio::ip::tcp::no_delay(true), ignored);
  socket.set_option(boost::asio::socket_base::keep_alive(true), ignored);
  const int fd = socket.native_handle();
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &kKeepAliveIdleSeconds, sizeof(int));
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &kKeepAliveIntervalSeconds, sizeof(int));
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &kKeepAliveProbes, sizeof(int));
}

}  // namespace

struct HttpConnection::Parser : http::request_parser<http::string_body> {};

HttpConnection::HttpConnection(boost::asio::ip::tcp::socket socket, std::shared_ptr<HttpContext> context)
    : context_(std::move(context)),
      stream_(make_stream(std::move(socket), context_->tls.get())),
      timer_(context_->io) {
  context_->connections.insert(this);
  context_->open_connections.fetch_add(1);
}

HttpConnection::~HttpConnection() = default;

void HttpConnection::start() {
  error_code ec;
  const auto endpoint = stream_->socket().remote_endpoint(ec);
  if (!ec) peer_ = endpoint.address().to_string() + ":" + std::to_string(endpoint.port());
  set_socket_options(stream_->socket());
  arm(Wait::idle, context_->options.request_timeout);
  stream_->handshake([self = shared_from_this()](const error_code& failed, size_t) {
    if (self->closed_) return;
    if (failed) return self->close();  // a scanner, or a client that does not trust the certificate
    self->arm(Wait::idle, self->context_->options.idle_timeout);
    self->read_more();
  });
}

void HttpConnection::refuse() {
  if (stream_->is_tls()) return close();  // a handshake would cost more than the refusal is worth
  set_socket_options(stream_->socket());
  fail(503, "too many connections are open (" + std::to_string(context_->options.max_connections) +
                "): try again later, or start the server with a higher limit");
  read_more();
}

void HttpConnection::read_more() {
  if (reading_ || closed_) return;
  if (state_ && !lingering_ && in_.size() >= kMaxPipelinedBytes) return;
  reading_ = true;
  stream_->read_some(boost::asio::buffer(chunk_),
                     [self = shared_from_this()](const error_code& ec, size_t bytes) {
                       self->reading_ = false;
                       if (self->closed_) return;
                       if (ec) return self->peer_gone();
                       self->on_read(bytes);
                     });
}

void HttpConnection::on_read(size_t bytes) {
  if (!lingering_) {
    in_.append(chunk_, bytes);
    if (!state_) parse();
  }
  read_more();
}

void HttpConnection::parse() {
  if (!parser_) {
    // Some clients end a body with an empty line that is not part of it (RFC 9112, section 2.2).
    while (in_.starts_with("\r\n")) in_.erase(0, 2);
    if (in_ == "\r") return;
  }
  if (in_.empty() || close_after_reply_) return;
  if (!parser_) {
    parser_ = std::make_unique<Parser>();
    parser_->eager(true);
    parser_->header_limit(static_cast<uint32_t>(context_->options.max_header_bytes));
    parser_->body_limit(context_->options.max_body_bytes);
    header_seen_ = false;
    record_ = {};
    arm(Wait::request, context_->options.request_timeout);
  }
  while (!in_.empty() && !parser_->is_done()) {
    error_code ec;
    const size_t used = parser_->put(boost::asio::buffer(in_), ec);
    in_.erase(0, used);
    record_.bytes_in += used;
    if (ec == http::error::need_more) break;
    if (ec == http::error::body_limit) {
      return fail(413,
                  "the body is larger than " + std::to_string(context_->options.max_body_bytes) + " bytes");
    }
    if (ec == http::error::header_limit) {
      return fail(
          431, "the header is larger than " + std::to_string(context_->options.max_header_bytes) + " bytes");
    }
    if (ec) return fail(400, "not an HTTP request: " + ec.message());
    if (used == 0) break;
  }
  if (parser_->is_header_done() && !std::exchange(header_seen_, true) && !take_header()) return;
  if (parser_->is_done()) dispatch();
}

bool HttpConnection::take_header() {
  const auto& header = parser_->get();
  const auto text = [](boost::beast::string_view value) {
    return std::string_view(value.data(), value.size());
  };
  // Where the body ends we cannot know: what follows would be read as a request of its own.
  const std::string_view coding = text(header[http::field::transfer_encoding]);
  if (!coding.empty() && !boost::beast::iequals({coding.data(), coding.size()}, "chunked")) {
    fail(400, "transfer-encoding is " + std::string(coding) + "; only chunked is supported");
    return false;
  }
  if (parser_->is_done()) return true;
  // Who has no key must not make us hold a body.
  const bool has_key =
      context_->options.access.has_key(text(header[http::field::authorization]), text(header["x-api-key"]));
  if (!has_key && !HttpAccess::is_open(text(header.target()))) {
    fail(401, kNoKey);
    return false;
  }
  if (boost::beast::iequals(header[http::field::expect], "100-continue")) {
    outgoing_ += "HTTP/1.1 100 Continue\r\n\r\n";
    flush();
  }
  return true;
}

std::shared_ptr<HttpReplyState> HttpConnection::begin_exchange(bool keep_alive, bool http_1_1, bool head_only,
                                                               std::string id) {
  state_ = std::make_shared<HttpReplyState>();
  state_->keep_alive = keep_alive && !context_->draining;
  state_->chunked = http_1_1;
  state_->head_only = head_only;
  state_->request_id = std::move(id);
  close_after_reply_ = !state_->keep_alive;
  reply_last_ = streaming_ = false;
  record_.id = state_->request_id;
  record_.peer = peer_;
  record_.route = "none";
  exchange_start_ = now();
  arm(Wait::nothing, {});
  return state_;
}

HttpResponse HttpConnection::refusal(int status, std::string message, std::string_view path) const {
  HttpResponse response = context_->options.error_response(status, std::move(message), path);
  if (status == 401) response.headers.emplace_back("www-authenticate", "Bearer");
  return response;
}

void HttpConnection::fail(int status, std::string message) {
  std::string path;
  HttpHeaders more_headers;
  if (parser_) {  // as far as it came: a body that is announced too large fails with the header
    const auto& header = parser_->get();
    const std::string_view target(header.target().data(), header.target().size());
    if (!percent_decode(target.substr(0, target.find('?')), path)) path.clear();
    const auto origin = header[http::field::origin];
    more_headers = context_->options.access.cors_headers({origin.data(), origin.size()});
    record_.method = std::string(header.method_string());
    record_.path = path;
  }
  parser_.reset();
  in_.clear();
  const auto state = begin_exchange(false, true, false, make_request_id());
  state->more_headers = std::move(more_headers);
  HttpReply(shared_from_this(), state).respond(refusal(status, std::move(message), path));
}

void HttpConnection::dispatch() {
  auto message = parser_->release();
  parser_.reset();
  auto request = std::make_shared<HttpRequest>();
  request->method = std::string(message.method_string());
  request->peer = peer_;
  request->received = now();
  for (const auto& field : message) {
    std::string name(field.name_string());
    for (char& c : name) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
    request->headers.emplace_back(std::move(name), std::string(field.value()));
  }
  request->body = std::move(message.body());

  std::string_view target(message.target().data(), message.target().size());
  if (target.starts_with("http://")) {  // absolute form: the authority is not ours to check
    const size_t slash = target.find('/', 7);
    target = slash == std::string_view::npos ? "/" : target.substr(slash);
  }
  const size_t question = target.find('?');
  if (question != std::string_view::npos) request->query = std::string(target.substr(question + 1));
  const bool path_ok = percent_decode(target.substr(0, question), request->path);

  const std::string_view given_id = request->header("x-request-id");
  request->id = usable_request_id(given_id) ? std::string(given_id) : make_request_id();
  const bool head_only = request->method == "HEAD";
  const auto state = begin_exchange(message.keep_alive(), message.version() >= 11, head_only, request->id);
  record_.method = request->method;
  record_.path = path_ok ? request->path : std::string(target);
  auto reply = std::make_shared<HttpReply>(shared_from_this(), state);
  const HttpServerOptions& options = context_->options;
  state->more_headers = options.access.cors_headers(request->header("origin"));
  if (answer_before_routes(*request, path_ok, *reply)) return;
  if (head_only) request->method = "GET";

  const RouteTable::Match match = context_->routes.find(request->method, request->path);
  if (match.route == nullptr) {
    if (match.allow.empty()) {
      return reply->respond(options.error_response(
          404, "there is no " + record_.path + "; this server has: " + context_->routes.listing(),
          record_.path));
    }
    HttpResponse response = options.error_response(
        405, request->method + " is not allowed on " + record_.path + ": use " + match.allow, record_.path);
    response.headers.emplace_back("allow", match.allow);
    return reply->respond(std::move(response));
  }
  record_.route = match.route->pattern;
  match.route->handler(std::move(request), std::move(reply));
}

bool HttpConnection::answer_before_routes(const HttpRequest& request, bool path_ok, HttpReply& reply) {
  const HttpServerOptions& options = context_->options;
  if (!path_ok) {
    reply.respond(options.error_response(400, "the path has a malformed percent escape", ""));
    return true;
  }
  // A browser asks before a page's script may: it sends no key with that.
  if (request.method == "OPTIONS" && !request.header("access-control-request-method").empty() &&
      !options.access.cors_headers(request.header("origin")).empty()) {
    HttpResponse response{.status = 204, .content_type = ""};
    response.headers = {{"access-control-allow-methods", "GET, HEAD, POST"},
                        {"access-control-max-age", "600"}};
    const std::string_view wanted = request.header("access-control-request-headers");
    constexpr std::string_view kNames = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_, ";
    if (!wanted.empty() && wanted.find_first_not_of(kNames) == wanted.npos)
      response.headers.emplace_back("access-control-allow-headers", wanted);
    reply.respond(std::move(response));
    return true;
  }
  if (HttpAccess::is_open(request.path) || options.access.has_key(request)) return false;
  reply.respond(refusal(401, kNoKey, request.path));
  return true;
}

void HttpConnection::post_deliver(const std::shared_ptr<HttpReplyState>& state, std::string bytes, int status,
                                  bool last) {
  boost::asio::post(context_->io, [self = shared_from_this(), state, bytes = std::move(bytes), status, last] {
    self->deliver(state, bytes, status, last);
  });
}

void HttpConnection::deliver(const std::shared_ptr<HttpReplyState>& state, const std::string& bytes,
                             int status, bool last) {
  if (closed_ || state != state_) return;
  if (status != 0) record_.status = status;
  streaming_ = streaming_ || !last;
  outgoing_ += bytes;
  reply_last_ = last;
  if (last && !state_->keep_alive) close_after_reply_ = true;
  if (streaming_ && outgoing_.size() > context_->options.max_stream_backlog_bytes) {
    log_warning("request " + record_.id + ": " + peer_ + " does not read its stream, " +
                std::to_string(outgoing_.size()) + " bytes wait: dropped");
    return peer_gone();
  }
  flush();
}

void HttpConnection::flush() {
  if (write_pending_ || closed_) return;
  if (outgoing_.empty()) {
    if (state_ && reply_last_) exchange_done();
    return;
  }
  writing_.swap(outgoing_);
  outgoing_.clear();
  write_pending_ = true;
  if (state_) arm(Wait::write, context_->options.write_timeout);
  on_written(0);
}

void HttpConnection::on_written(size_t bytes) {
  writing_.erase(0, bytes);
  record_.bytes_out += bytes;
  if (writing_.empty()) {
    write_pending_ = false;
    if (state_) arm(Wait::nothing, {});
    return flush();
  }
  if (bytes != 0 && state_) arm(Wait::write, context_->options.write_timeout);
  // Part by part, so that slow progress is progress.
  stream_->write_some(boost::asio::buffer(writing_),
                      [self = shared_from_this()](const error_code& ec, size_t written) {
                        if (self->closed_) return;
                        if (ec) return self->peer_gone();
                        self->on_written(written);
                      });
}

void HttpConnection::exchange_done() {
  record(false);
  state_.reset();
  reply_last_ = streaming_ = false;
  if (close_after_reply_ || context_->draining) return linger();
  arm(Wait::idle, context_->options.idle_timeout);
  parse();
  read_more();
}

void HttpConnection::record(bool disconnected) {
  record_.disconnected = disconnected;
  if (record_.status == 0) record_.status = 499;
  record_.seconds = seconds_since(exchange_start_);
  if (context_->options.on_complete) context_->options.on_complete(record_);
}

void HttpConnection::linger() {
  lingering_ = true;
  stream_->end_writing(shared_from_this());
  arm(Wait::linger, kLingerTime);
  read_more();
}

void HttpConnection::drain() {
  if (!state_ && !parser_ && !write_pending_) close();
}

void HttpConnection::abort() {
  peer_gone();
}

void HttpConnection::peer_gone() {
  if (closed_) return;
  const auto state = std::move(state_);
  if (state) {
    std::function<void()> callback;
    {
      const std::lock_guard lock(state->mutex);
      state->gone = true;
      callback = std::move(state->on_disconnect);
      state->on_disconnect = nullptr;
    }
    record(true);
    if (callback) callback();
  }
  close();
}

void HttpConnection::close() {
  if (closed_) return;
  closed_ = true;
  error_code ignored;
  stream_->socket().close(ignored);
  timer_.cancel();
  context_->connections.erase(this);
  context_->open_connections.fetch_sub(1);
}

void HttpConnection::arm(Wait wait, Duration duration) {
  wait_ = wait;
  if (wait == Wait::nothing) {
    timer_.cancel();
    return;
  }
  timer_.expires_after(duration);
  timer_.async_wait([self = shared_from_this()](const error_code& ec) {
    if (!ec && !self->closed_ && self->timer_.expiry() <= now()) self->on_timer();
  });
}

void HttpConnection::on_timer() {
  switch (wait_) {
    case Wait::request:
      return fail(408, "the request did not arrive within " +
                           std::to_string(std::chrono::duration_cast<std::chrono::seconds>(
                                              context_->options.request_timeout)
                                              .count()) +
                           " s");
    case Wait::idle:
    case Wait::linger:
      return close();
    case Wait::write:
      log_warning("request " + record_.id + ": " + peer_ + " takes no more bytes: dropped");
      return peer_gone();
    case Wait::nothing:
      return;
  }
}

}  // namespace tandem
