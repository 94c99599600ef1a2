#include "serving/http_server.h"

#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <condition_variable>
#include <optional>
#include <thread>
#include <utility>

#include "base/log.h"
#include "serving/http_connection.h"

namespace tandem {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

namespace {

// When the process is out of descriptors accept fails at once, again and again: wait for some to come back.
constexpr Duration kAcceptRetry = std::chrono::milliseconds(100);
// The I/O thread works for microseconds at a time and must answer whatever the compute threads do. Without
// the privilege it stays as it is, and the scheduler's favour for threads that sleep has to do.
constexpr int kIoThreadNice = -5;
// Descriptors beside client connections: model files, peers, logs.
constexpr rlim_t kOtherDescriptors = 256;

// The usual soft limit of 1024 descriptors is below what max_connections may need; the hard limit is ours to
// use.
void raise_descriptor_limit(uint32_t max_connections) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const rlim_t wanted = std::min<rlim_t>(limit.rlim_max, max_connections + kOtherDescriptors);
  if (limit.rlim_cur >= wanted) return;
  limit.rlim_cur = wanted;
  setrlimit(RLIMIT_NOFILE, &limit);
}

Error bind_error(const HttpServerOptions& options, const error_code& ec) {
  const std::string address = options.host + ":" + std::to_string(options.port);
  if (ec == asio::error::address_in_use) {
    return {ErrorCode::unavailable, "port " + std::to_string(options.port) + " is taken on " + options.host +
                                        ": choose another with --port, or --port 0 for any free one"};
  }
  if (ec == asio::error::access_denied) {
    return {ErrorCode::unavailable, "no permission to listen on " + address +
                                        ": ports below 1024 need privileges, "
                                        "choose a higher one with --port"};
  }
  return {ErrorCode::unavailable,
          "cannot listen on " + address + " (" + ec.message() +
              "): choose an address of this machine with --host, a free port with --port"};
}

}  // namespace

class HttpServer::Impl {
 public:
  Impl() : context_(std::make_shared<HttpContext>()), acceptor_(context_->io), retry_(context_->io) {}

  Status start(HttpServerOptions options, RouteTable routes) {
    context_->options = std::move(options);
    context_->routes = std::move(routes);
    if (!context_->options.error_response) {
      context_->options.error_response = [](int status, const std::string& message, std::string_view) {
        return HttpResponse{.status = status, .content_type = "text/plain", .body = message + "\n"};
      };
    }
    const HttpServerOptions& given = context_->options;
    if (!given.tls_certificate_file.empty()) {
      TANDEM_ASSIGN(context_->tls, TlsContext::load(given.tls_certificate_file, given.tls_key_file));
      is_tls_ = true;
    }
    TANDEM_TRY(listen());
    raise_descriptor_limit(context_->options.max_connections);
    work_.emplace(context_->io.get_executor());
    accept();
    thread_ = std::thread([this] {
      pthread_setname_np(pthread_self(), "tandem-http");
      setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), kIoThreadNice);
      context_->io.run();
    });
    return {};
  }

  Status reload(HttpAccess access, const std::string& certificate_file, const std::string& key_file) {
    std::shared_ptr<TlsContext> tls;
    if (is_tls_) {
      TANDEM_ASSIGN(tls, TlsContext::load(certificate_file, key_file));
    }
    asio::post(context_->io, [this, access = std::move(access), tls = std::move(tls)]() mutable {
      context_->options.access = std::move(access);
      if (tls != nullptr)
        context_->tls = std::move(tls);  // streams that are open keep what they need of theirs
    });
    return {};
  }

  void stop(Duration drain) {
    if (!thread_.joinable()) return;
    asio::post(context_->io, [this] {
      error_code ignored;
      acceptor_.close(ignored);
      retry_.cancel();
      context_->draining = true;
      for_each_connection([](HttpConnection& connection) { connection.drain(); });
    });
    const Instant deadline = now() + drain;
    // Polling: the end of the last reply is rare enough for 5 ms, and needs no hook in the connections.
    while (context_->open_connections.load() != 0 && now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    asio::post(context_->io, [this] {
      for_each_connection([](HttpConnection& connection) { connection.abort(); });
      work_.reset();
    });
    thread_.join();
  }

  uint16_t port() const { return port_; }
  bool is_tls() const { return is_tls_; }
  const std::string& host() const { return context_->options.host; }
  size_t open_connections() const { return context_->open_connections.load(); }

 private:
  Status listen() {
    const HttpServerOptions& options = context_->options;
    error_code ec;
    tcp::resolver resolver(context_->io);
    const auto found = resolver.resolve(options.host, std::to_string(options.port),
                                        tcp::resolver::passive | tcp::resolver::numeric_service, ec);
    if (ec || found.empty()) {
      return make_error(ErrorCode::invalid_argument, "host \"" + options.host + "\" has no address (" +
                                                         ec.message() +
                                                         "): give one of this machine's with --host");
    }
    const tcp::endpoint endpoint = found.begin()->endpoint();
    acceptor_.open(endpoint.protocol(), ec);
    if (!ec) acceptor_.set_option(tcp::acceptor::reuse_address(true), ec);
    if (!ec) acceptor_.bind(endpoint, ec);
    if (!ec) acceptor_.listen(tcp::acceptor::max_listen_connections, ec);
    if (ec) return std::unexpected(bind_error(options, ec));
    port_ = acceptor_.local_endpoint(ec).port();
    return {};
  }

  void accept() {
    acceptor_.async_accept([this](const error_code& ec, tcp::socket socket) {
      if (!acceptor_.is_open()) return;
      if (ec) {
        log_warning("accepting a connection failed: " + ec.message());
        retry_.expires_after(kAcceptRetry);
        retry_.async_wait([this](const error_code& stopped) {
          if (!stopped) accept();
        });
        return;
      }
      const bool full = context_->connections.size() >= context_->options.max_connections;
      const auto connection = std::make_shared<HttpConnection>(std::move(socket), context_);
      full ? connection->refuse() : connection->start();
      accept();
    });
  }

  template <class Fn>
  void for_each_connection(Fn&& fn) {
    const auto copy = context_->connections;  // fn may close, which removes from the set
    // In whatever order: NOLINTNEXTLINE(bugprone-nondeterministic-pointer-iteration-order)
    for (HttpConnection* connection : copy) {
      // An earlier call may have closed this one too, but its object lives: a posted handler holds it.
      if (context_->connections.contains(connection)) fn(*connection->shared_from_this());
    }
  }

  std::shared_ptr<HttpContext> context_;
  tcp::acceptor acceptor_;
  asio::steady_timer retry_;
  std::optional<asio::executor_work_guard<asio::io_context::executor_type>> work_;
  std::thread thread_;
  uint16_t port_ = 0;
  bool is_tls_ = false;
};

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpServer::~HttpServer() {
  stop(Duration::zero());
}

Result<std::unique_ptr<HttpServer>> HttpServer::start(HttpServerOptions options, RouteTable routes) {
  auto impl = std::make_unique<Impl>();
  TANDEM_TRY(impl->start(std::move(options), std::move(routes)));
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

uint16_t HttpServer::port() const {
  return impl_->port();
}
std::string HttpServer::url() const {
  const std::string& host = impl_->host();
  const bool is_ipv6 = host.find(':') != std::string::npos;
  const std::string scheme = impl_->is_tls() ? "https://" : "http://";
  return scheme + (is_ipv6 ? "[" + host + "]" : host) + ":" + std::to_string(impl_->port());
}
size_t HttpServer::open_connections() const {
  return impl_->open_connections();
}
Status HttpServer::reload(HttpAccess access, const std::string& tls_certificate_file,
                          const std::string& tls_key_file) {
  return impl_->reload(std::move(access), tls_certificate_file, tls_key_file);
}
void HttpServer::stop(Duration drain) {
  impl_->stop(drain);
}

}  // namespace tandem
