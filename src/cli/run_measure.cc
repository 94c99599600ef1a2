#include "cli/run_measure.h"

#include <array>

namespace tandem {

AnswerTimes times_of(const BatchAnswer& answer) {
  return {answer.first_token_seconds, answer.seconds, answer.finish.prompt_tokens, answer.events.size(),
          answer.finish.reason == FinishReason::error};
}

RunMeasure measure_run(std::span<const AnswerTimes> answers, double seconds) {
  RunMeasure run;
  run.seconds = seconds;
  run.requests = answers.size();
  uint64_t decoded = 0;
  for (const AnswerTimes& answer : answers) {
    if (answer.failed) {
      ++run.failed;
      continue;
    }
    run.prompt_tokens += answer.prompt_tokens;
    run.output_tokens += answer.tokens;
    run.e2e_ms += 1e3 * answer.seconds;
    run.ttft_ms += 1e3 * answer.first_token_seconds;
    if (answer.tokens < 2) continue;
    ++decoded;
    run.tpot_ms +=
        1e3 * (answer.seconds - answer.first_token_seconds) / static_cast<double>(answer.tokens - 1);
  }
  const auto good = static_cast<double>(run.requests - run.failed);
  if (good > 0) {
    run.e2e_ms /= good;
    run.ttft_ms /= good;
  }
  if (decoded > 0) run.tpot_ms /= static_cast<double>(decoded);
  if (seconds > 0) {
    run.prefill_tokens_per_second = static_cast<double>(run.prompt_tokens) / seconds;
    run.output_tokens_per_second = static_cast<double>(run.output_tokens) / seconds;
    run.total_tokens_per_second = run.prefill_tokens_per_second + run.output_tokens_per_second;
  }
  return run;
}

std::span<const RunMetric> run_metrics() {
  static constexpr std::array<RunMetric, 6> kMetrics = {{
      {"e2e_ms", "E2E ms", false, &RunMeasure::e2e_ms},
      {"ttft_ms", "TTFT ms", false, &RunMeasure::ttft_ms},
      {"tpot_ms", "TPOT ms", false, &RunMeasure::tpot_ms},
      {"prefill_tokens_per_second", "prefill tokens/s", true, &RunMeasure::prefill_tokens_per_second},
      {"output_tokens_per_second", "output tokens/s", true, &RunMeasure::output_tokens_per_second},
      {"total_tokens_per_second", "total tokens/s", true, &RunMeasure::total_tokens_per_second},
  }};
  return kMetrics;
}

}  // namespace tandem
