// HttpServer: HTTP/1.1 over TCP or TLS on one I/O thread: keep-alive, bounded headers and bodies, timeouts,
// streams with a bounded backlog, and notice of a client that leaves. It knows no API: routes and the shape
// of errors are passed in. start() and stop() from the owner's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"
#include "serving/http_access.h"
#include "serving/http_types.h"
#include "serving/route_table.h"

namespace tandem {

struct HttpServerOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 8000;  // 0: any free one, see HttpServer::port()

  // TLS, with both; PEM files. Without: plain HTTP.
  std::string tls_certificate_file = {}, tls_key_file = {};
  HttpAccess access = {};

  size_t max_header_bytes = 32 << 10;  // proxies add cookies and tokens; nothing legitimate comes near
  // A prompt of a million tokens as JSON numbers is some 8 MB.
  size_t max_body_bytes = 32 << 20;
  uint32_t max_connections = 1024;  // four for each of the 256 streams that the service is planned for
  // A client that reads slower than tokens come is dropped when this much waits: some 10,000 tokens.
  size_t max_stream_backlog_bytes = 4 << 20;

  // From the first byte of a request to its last: enough for max_body_bytes at 5 Mbit/s.
  Duration request_timeout = std::chrono::seconds(60);
  // Clients pool connections for about a minute; outliving that avoids a close that races with a request.
  Duration idle_timeout = std::chrono::seconds(75);
  // Without any progress of a write: several retransmissions of TCP.
  Duration write_timeout = std::chrono::seconds(60);

  // The reply for what the server itself refuses: 400, 401, 404, 405, 408, 413, 431, 500, 503. `path`: as far
  // as it is known, else "". I/O thread, must not block. Empty: the message as a line of text.
  std::function<HttpResponse(int status, std::string message, std::string_view path)> error_response = {};
  // I/O thread, must not block. Optional.
  std::function<void(const HttpRecord&)> on_complete = {};
};

class HttpServer {
 public:
  // Bound and answering when it returns. unavailable: the address cannot be bound, naming it and what would
  // do.
  static Result<std::unique_ptr<HttpServer>> start(HttpServerOptions options, RouteTable routes);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  uint16_t port() const;
  std::string url() const;  // "http://127.0.0.1:8000", or https
  size_t open_connections() const;

  // From the next request on these are who may ask, and from the next connection on this is the certificate
  // (of a server that has one). An error leaves all as it was.
  Status reload(HttpAccess access, const std::string& tls_certificate_file, const std::string& tls_key_file);

  // Accepts nothing more, waits at most `drain` for open replies, then breaks off the rest. May be called
  // twice.
  void stop(Duration drain);

 private:
  class Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem
