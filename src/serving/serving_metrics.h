// ServingMetrics: what /metrics shows, in the text format of Prometheus. Names and units are in the .cc file,
// one place. Any thread may observe; `text` asks the engine for its own counters.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "attention/engine.h"

namespace tandem {

class ServingMetrics {
 public:
  ServingMetrics();
  ~ServingMetrics();
  ServingMetrics(const ServingMetrics&) = delete;
  ServingMetrics& operator=(const ServingMetrics&) = delete;

  void count_request(const std::string& route, int status, bool disconnected, double seconds);
  void observe_first_token(double seconds);
  void observe_inter_token(double seconds);
  // One answer has ended, however: from the request's arrival to the engine's end of it.
  void observe_answer(double seconds, uint32_t prompt_tokens, uint32_t completion_tokens);

  // `engine`: nullptr while the model is loading.
  std::string text(const Engine* engine) const;
  static const char* content_type();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem
