// RunMeasure: one run of a load, as a user of the model would feel it. Values.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cli/batch_generation.h"

namespace tandem {

// Of one request; seconds count from its submission.
struct AnswerTimes {
  double first_token_seconds = 0, seconds = 0;
  uint64_t prompt_tokens = 0, tokens = 0;
  bool failed = false;
};
AnswerTimes times_of(const BatchAnswer& answer);

struct RunMeasure {
  double seconds = 0;  // from the first submission to the last end
  uint64_t requests = 0, failed = 0, prompt_tokens = 0, output_tokens = 0;
  // Means over the requests that did not fail.
  double e2e_ms = 0;   // a whole request
  double ttft_ms = 0;  // time to the first token
  double tpot_ms = 0;  // time per output token after the first; of requests with two tokens or more
  // Over the whole run: prompt tokens, output tokens and both, divided by `seconds`.
  double prefill_tokens_per_second = 0, output_tokens_per_second = 0, total_tokens_per_second = 0;
};
RunMeasure measure_run(std::span<const AnswerTimes> answers, double seconds);

struct RunMetric {
  const char* key;   // in JSON
  const char* name;  // in tables
  bool higher_is_better;
  double RunMeasure::* value;
};
// In the order of tables.
std::span<const RunMetric> run_metrics();

}  // namespace tandem
