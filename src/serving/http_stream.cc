#include "serving/http_stream.h"

#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/host_name_verification.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <utility>

namespace tandem {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

struct TlsContext::Impl {
  asio::ssl::context context;
  std::string server_name;  // of a client; empty: this is a server's
};

TlsContext::TlsContext(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TlsContext::~TlsContext() = default;

Result<std::shared_ptr<TlsContext>> TlsContext::load(const std::string& certificate_file,
                                                     const std::string& key_file) {
  auto impl = std::make_unique<Impl>(Impl{asio::ssl::context(asio::ssl::context::tls_server), {}});
  error_code ec;
  // TLS 1.0 and 1.1 are deprecated (RFC 8996).
  impl->context.set_options(asio::ssl::context::default_workarounds | asio::ssl::context::no_sslv2 |
                                asio::ssl::context::no_sslv3 | asio::ssl::context::no_tlsv1 |
                                asio::ssl::context::no_tlsv1_1,
                            ec);
  if (!ec) impl->context.use_certificate_chain_file(certificate_file, ec);
  if (ec) {
    return make_error(ErrorCode::invalid_argument, "serving.ssl_certfile: no certificate can be read from " +
                                                       certificate_file + " (" + ec.message() +
                                                       "); give a PEM file");
  }
  impl->context.use_private_key_file(key_file, asio::ssl::context::pem, ec);
  if (ec) {
    return make_error(ErrorCode::invalid_argument, "serving.ssl_keyfile: " + key_file +
                                                       " is not the key of " + certificate_file + " (" +
                                                       ec.message() + "); give its PEM file");
  }
  return std::shared_ptr<TlsContext>(new TlsContext(std::move(impl)));
}

Result<std::shared_ptr<TlsContext>> TlsContext::for_client(const std::string& host) {
  auto impl = std::make_unique<Impl>(Impl{asio::ssl::context(asio::ssl::context::tls_client), host});
  error_code ec;
  impl->context.set_default_verify_paths(ec);
  if (!ec) impl->context.set_verify_mode(asio::ssl::verify_peer, ec);
  if (!ec) impl->context.set_verify_callback(asio::ssl::host_name_verification(host), ec);
  if (ec) {
    return make_error(ErrorCode::unavailable, "no certificates of authorities can be read (" + ec.message() +
                                                  "); name a PEM file in SSL_CERT_FILE");
  }
  return std::shared_ptr<TlsContext>(new TlsContext(std::move(impl)));
}

namespace {

class PlainStream : public HttpStream {
 public:
  explicit PlainStream(tcp::socket socket) : socket_(std::move(socket)) {}
  tcp::socket& socket() override { return socket_; }
  bool is_tls() const override { return false; }
  void handshake(Handler done) override { done({}, 0); }
  void read_some(asio::mutable_buffer into, Handler done) override {
    socket_.async_read_some(into, std::move(done));
  }
  void write_some(asio::const_buffer from, Handler done) override {
    socket_.async_write_some(from, std::move(done));
  }
  void end_writing(std::shared_ptr<void> /*keep_alive*/) override {
    error_code ignored;
    socket_.shutdown(tcp::socket::shutdown_send, ignored);
  }

 private:
  tcp::socket socket_;
};

class TlsStream : public HttpStream {
 public:
  // `server_name`: of a client, for servers that have several certificates.
  TlsStream(tcp::socket socket, asio::ssl::context& context, const std::string& server_name)
      : stream_(std::move(socket), context), is_client_(!server_name.empty()) {
    if (is_client_) SSL_set_tlsext_host_name(stream_.native_handle(), server_name.c_str());
  }
  tcp::socket& socket() override { return stream_.next_layer(); }
  bool is_tls() const override { return true; }
  void handshake(Handler done) override {
    stream_.async_handshake(is_client_ ? asio::ssl::stream_base::client : asio::ssl::stream_base::server,
                            [done = std::move(done)](const error_code& ec) { done(ec, 0); });
  }
  void read_some(asio::mutable_buffer into, Handler done) override {
    stream_.async_read_some(into, std::move(done));
  }
  void write_some(asio::const_buffer from, Handler done) override {
    stream_.async_write_some(from, std::move(done));
  }
  void end_writing(std::shared_ptr<void> keep_alive) override {
    stream_.async_shutdown([keep_alive = std::move(keep_alive)](const error_code&) {});
  }

 private:
  asio::ssl::stream<tcp::socket> stream_;
  bool is_client_;
};

}  // namespace

std::unique_ptr<HttpStream> make_stream(tcp::socket socket, TlsContext* tls) {
  if (tls == nullptr) return std::make_unique<PlainStream>(std::move(socket));
  return std::make_unique<TlsStream>(std::move(socket), tls->impl_->context, tls->impl_->server_name);
}

}  // namespace tandem
