// HttpStream: a connection's bytes, as they are or through TLS. Internal to the HTTP server and client (it
// includes Asio); I/O thread. One read and one write may be under way at once; their handlers may come after
// close().
#pragma once

#include <boost/asio/buffer.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <functional>
#include <memory>
#include <string>

#include "base/result.h"

namespace tandem {

class HttpStream {
 public:
  using Handler = std::function<void(const boost::system::error_code&, size_t bytes)>;

  virtual ~HttpStream() = default;
  virtual boost::asio::ip::tcp::socket& socket() = 0;
  // Before anything else. A plain stream is ready at once, before this returns.
  virtual void handshake(Handler done) = 0;
  virtual bool is_tls() const = 0;
  virtual void read_some(boost::asio::mutable_buffer into, Handler done) = 0;
  virtual void write_some(boost::asio::const_buffer from, Handler done) = 0;
  // Nothing more is written: tells the peer so.
  virtual void end_writing(std::shared_ptr<void> keep_alive) = 0;
};

// What TLS needs, ready for streams: a server's certificate and key, or a client's authorities and the name
// that the server's certificate must have. Shared by all streams of either.
class TlsContext {
 public:
  // PEM files: the certificate with the chain above it, and its key. Errors name the setting and the file.
  static Result<std::shared_ptr<TlsContext>> load(const std::string& certificate_file,
                                                  const std::string& key_file);
  // Of a client: the system's authorities, or those that SSL_CERT_FILE and SSL_CERT_DIR name.
  static Result<std::shared_ptr<TlsContext>> for_client(const std::string& host);
  ~TlsContext();

 private:
  friend std::unique_ptr<HttpStream> make_stream(boost::asio::ip::tcp::socket socket, TlsContext* tls);
  struct Impl;
  explicit TlsContext(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// `tls`: null for a plain one; outlives the stream.
std::unique_ptr<HttpStream> make_stream(boost::asio::ip::tcp::socket socket, TlsContext* tls);

}  // namespace tandem
