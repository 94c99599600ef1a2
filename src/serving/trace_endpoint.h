// TraceEndpoint: GET /debug/trace of a running rank: what it did in the next `seconds`, or in the `last` ones
// where it records all the time, as a trace file. One at a time; a second one is answered 409. A thread of
// its own, of the lowest priority, waits and writes: neither the engine nor the I/O thread waits for it.
//
// handle() from the I/O thread; attach() and stop() from the owner's thread.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "base/result.h"
#include "base/trace_ring.h"
#include "serving/http_types.h"
#include "serving/worker_pool.h"

namespace tandem {

inline constexpr const char* kTracePath = "/debug/trace";

// What is recorded in this process.
struct TraceSource {
  TraceRing* ring = nullptr;  // outlives the endpoint's stop(); null: nothing is
  // It records from its start to its end: what has been can be asked for. Else only what is asked for.
  bool always = false;
  // The file of a window. The endpoint's thread.
  std::function<std::string(const TraceWindow& window)> write;
};

struct TraceEndpointOptions {
  bool on = false;  // off: what is asked for is refused with the setting that would do
  // Shape of refusals: 400, 404, 409, 503. As HttpServerOptions::error_response.
  std::function<HttpResponse(int status, std::string message, std::string_view path)> error_response;
  // The newest of a window, so that a reply has a bound: some 50 MB, which Perfetto loads in seconds. A model
  // of 48 layers at 100 steps a second has as many in five.
  size_t max_events = 1 << 18;
};

// What a request wants.
struct TraceRequest {
  double seconds = 0;  // in kMinTraceSeconds..kMaxTraceSeconds
  bool past = false;
};
inline constexpr double kMinTraceSeconds = 0.1, kMaxTraceSeconds = 60;
// `query`: "seconds=5" or "last=5". invalid_argument: anything else, with what would do.
Result<TraceRequest> parse_trace_query(std::string_view query);

class TraceEndpoint {
 public:
  explicit TraceEndpoint(TraceEndpointOptions options);
  ~TraceEndpoint();

  // Until then requests are answered 503. A source without a ring: 404, this process has nothing to record.
  void attach(TraceSource source);
  void handle(const std::shared_ptr<HttpRequest>& request, const std::shared_ptr<ResponseWriter>& writer);
  // Answers the request that waits with what there is, then refuses all. May be called twice.
  void stop();

 private:
  struct Visit;

  static void begin(Visit& visit);
  void run(const Visit& visit);
  // Until the time is over, the client has left, or stop().
  void wait(const Visit& visit);

  const TraceEndpointOptions options_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool attached_ = false, busy_ = false, stopping_ = false;
  TraceSource source_;
  std::unique_ptr<WorkerPool> thread_;  // null: off
};

}  // namespace tandem
