// What a request handler sees of HTTP: the request as a value, and a writer for its reply. No socket, no
// Beast. The server owns the writer's connection; handlers keep the writer by shared_ptr for as long as they
// have something to say. Any thread may call a writer; calls after the client has gone do nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"

namespace tandem {

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method;   // "GET"; HEAD arrives as GET, its body is dropped by the server
  std::string path;     // percent-decoded, without the query
  std::string query;    // after '?', as it came
  HttpHeaders headers;  // names in lower case
  std::string body;
  std::string id;    // x-request-id of the client if it is usable, otherwise made here; echoed in the reply
  std::string peer;  // "127.0.0.1:40312"
  Instant received;  // when the last byte had been read

  // The first header of that name (lower case), or "".
  std::string_view header(std::string_view name) const;
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  HttpHeaders headers = {};  // beside content-type, content-length, connection, date and x-request-id
  std::string body = {};
};

// One request's reply: either respond() once, or start_stream(), write()..., finish().
// A writer that is dropped without a complete reply answers 500, or breaks off the stream.
class ResponseWriter {
 public:
  virtual ~ResponseWriter() = default;
  virtual void respond(HttpResponse response) = 0;
  // `head.body` is the first part of the stream.
  virtual void start_stream(HttpResponse head) = 0;
  virtual void write(std::string data) = 0;
  virtual void finish() = 0;
  // `callback` runs once on the I/O thread when the client leaves before the reply is complete (at once, on
  // the calling thread, if it has left already). Must not block. It is forgotten when the reply is complete.
  virtual void on_disconnect(std::function<void()> callback) = 0;
};

// Runs on the I/O thread: must not block. Long work goes to a WorkerPool, which takes the request and the
// writer along.
using HttpHandler = std::function<void(std::shared_ptr<HttpRequest>, std::shared_ptr<ResponseWriter>)>;

// What is known when a reply is complete or its client has left: for the access log and the metrics.
struct HttpRecord {
  std::string method, path, route, id, peer;  // route: the pattern that matched, or "none"
  int status = 0;                             // as sent; 499 when the client left before a status was sent
  bool disconnected = false;                  // the client left before the end
  uint64_t bytes_in = 0, bytes_out = 0;
  double seconds = 0;  // from the last byte of the request to the last byte of the reply
};

// "OK", "Not Found", ...
std::string_view http_reason(int status);

// Percent-decoding of a path; false when an escape is malformed or gives a NUL.
bool percent_decode(std::string_view text, std::string& out);

}  // namespace tandem
