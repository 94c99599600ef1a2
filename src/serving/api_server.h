// ApiServer: the HTTP front of a model: OpenAI's API, /health, /metrics, /props. It listens from the start
// and answers 503 with a reason until set_ready. One owner thread calls start, set_ready and stop;
// set_progress may come from any.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"
#include "serving/http_server.h"
#include "serving/served_model.h"

namespace tandem {

struct ApiServerOptions {
  HttpServerOptions http;  // error_response and on_complete are set here
  // Rendering and tokenising: two, so that one huge prompt does not hold up the next request.
  int prepare_threads = 2;
  // Requests that wait for such a thread; one more is answered 429.
  size_t max_waiting_requests = 1024;
  bool trace_requests = false;  // whether GET /debug/trace is answered
  bool access_log = true;       // one line a request; /health, /ready and /metrics only at the debug level
};

class ApiServer {
 public:
  static Result<std::unique_ptr<ApiServer>> start(ApiServerOptions options);
  ~ApiServer();
  ApiServer(const ApiServer&) = delete;
  ApiServer& operator=(const ApiServer&) = delete;

  uint16_t port() const;
  std::string url() const;

  // What /health says while the model is loading: "reading weights", 0.42.
  void set_progress(std::string stage, double fraction);
  // Requests are served from now on. `model.engine` is attached, and outlives stop().
  void set_ready(ServedModel model);
  // See HttpServer::reload.
  Status reload(HttpAccess access, const std::string& tls_certificate_file, const std::string& tls_key_file);
  // Accepts no more, lets open replies end within `drain`, then cancels them. Returns when nothing calls the
  // engine any more. May be called twice.
  void stop(Duration drain);

 private:
  struct Impl;
  explicit ApiServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem
