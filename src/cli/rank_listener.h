// RankListener: the HTTP of a rank that serves no API: GET /metrics, and GET /debug/trace where
// serving.trace_requests lets somebody ask for it. At afd.metrics_listen. Main thread.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/result.h"
#include "cli/settings.h"
#include "serving/trace_endpoint.h"

namespace tandem {

// unsupported: traces that nobody could ask for.
Status check_metrics_listen(const Settings& settings);

class RankListener {
 public:
  // `metrics`: Prometheus text, asked on the I/O thread; what it and `trace` use outlives the listener.
  // invalid_argument: no address, or one that other hosts reach, with traces and without a key or
  // afd.insecure; unavailable: it cannot be bound.
  static Result<std::unique_ptr<RankListener>> start(const Settings& settings,
                                                     std::function<std::string()> metrics, TraceSource trace);
  ~RankListener();

  std::string metrics_url() const;
  // Answers a request for a trace that waits, and refuses those that come. May be called twice.
  void stop_traces();

 private:
  struct Impl;
  explicit RankListener(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem
