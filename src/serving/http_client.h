// HttpClient: HTTP/1.1 requests to one server over TCP or TLS, any number at once, on one I/O thread of its
// own. Connections are kept for later requests. A TLS server's certificate is checked against the system's
// authorities (SSL_CERT_FILE names others).
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/result.h"
#include "serving/http_types.h"
#include "serving/http_url.h"

namespace tandem {

struct HttpClientOptions {
  // To resolve, connect and agree on TLS: several retransmissions of a first packet.
  Duration connect_timeout = std::chrono::seconds(10);
  // Without a byte in either direction: a long prompt behind a long queue is silent for minutes.
  Duration silence_timeout = std::chrono::minutes(10);
};

struct HttpClientRequest {
  std::string method = "GET";
  std::string path;          // behind the URL's own path, with its slash: "/v1/models"
  HttpHeaders headers = {};  // beside host, content-length and accept
  std::string body = {};
};

// What a request is told, on the client's I/O thread; must not block. on_end is the last call, once.
class HttpReplySink {
 public:
  virtual ~HttpReplySink() = default;
  virtual void on_head(int status, const HttpHeaders& headers) = 0;
  virtual void on_body(std::string_view piece) = 0;
  // unavailable: no connection, or it broke (names the server); deadline_exceeded: silence; data_loss: not
  // HTTP; cancelled: the client is being destroyed.
  virtual void on_end(const Status& status) = 0;
};

struct HttpClientReply {
  int status = 0;
  HttpHeaders headers;
  std::string body;
};

class HttpClient {
 public:
  static Result<std::unique_ptr<HttpClient>> create(HttpUrl url, HttpClientOptions options = {});
  // Breaks off what is open: its sinks hear `cancelled` before this returns.
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  const HttpUrl& url() const;
  // Any thread; does not block. A request on a kept connection that the server has closed meanwhile goes out
  // again on a new one, as long as no byte of a reply has come.
  void send(HttpClientRequest request, std::shared_ptr<HttpReplySink> sink);
  // Any thread but the I/O thread: the whole reply, whatever its status.
  Result<HttpClientReply> fetch(HttpClientRequest request);

 private:
  class Impl;
  explicit HttpClient(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem
