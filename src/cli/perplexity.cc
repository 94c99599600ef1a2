#include "cli/perplexity.h"

#include <algorithm>
#include <cmath>

#include "cli/batch_generation.h"

namespace tandem {

std::vector<ScoreWindow> score_windows(uint64_t tokens, uint64_t window, uint64_t stride) {
  std::vector<ScoreWindow> windows;
  uint64_t done = 0;  // tokens before are scored
  for (uint64_t begin = 0; done < tokens; begin += stride) {
    const uint64_t end = std::min(begin + window, tokens);
    const uint64_t scored = std::max(done, begin + 1);
    done = end;
    if (scored < end) windows.push_back({begin, scored, end});
  }
  return windows;
}

double PerplexityScore::bits_per_token() const {
  return nats_per_token() / std::log(2.0);
}
double PerplexityScore::bits_per_byte() const {
  return bytes == 0 ? 0 : nats / std::log(2.0) / static_cast<double>(bytes);
}
double PerplexityScore::perplexity() const {
  return std::exp(nats_per_token());
}

Result<PerplexityScore> score_text(Engine& engine, std::span<const int32_t> tokens, uint64_t window,
                                   uint64_t stride, uint32_t concurrency,
                                   const std::function<void(size_t)>& on_window) {
  const std::vector<ScoreWindow> windows = score_windows(tokens.size(), window, stride);
  std::vector<GenerationRequest> requests;
  for (const ScoreWindow& part : windows) {
    GenerationRequest request;
    request.prompt.assign(tokens.begin() + static_cast<std::ptrdiff_t>(part.begin),
                          tokens.begin() + static_cast<std::ptrdiff_t>(part.end));
    request.sampling.temperature = 0;
    request.sampling.max_tokens = 0;
    request.sampling.prompt_logprobs = 0;
    requests.push_back(std::move(request));
  }
  PerplexityScore score;
  score.tokens = tokens.size();
  score.windows = windows.size();
  Error error;
  bool failed = false;
  size_t done = 0;
  // By window: whatever the order in which they end, the sum is the same.
  std::vector<double> sums(windows.size(), 0);
  const Instant start = now();
  generate_batch(engine, requests, concurrency, [&](size_t index, const BatchAnswer& answer) {
    const ScoreWindow& part = windows[index];
    if (answer.finish.reason == FinishReason::error && !failed) {
      failed = true;
      error = answer.finish.error;
    }
    for (uint64_t at = part.scored; at < part.end && at - part.begin < answer.prompt_logprobs.size(); ++at)
      sums[index] -= answer.prompt_logprobs[at - part.begin];
    score.scored += part.end - part.scored;
    if (on_window) on_window(++done);
  });
  score.seconds = seconds_since(start);
  if (failed) return std::unexpected(error);
  for (const double sum : sums) score.nats += sum;
  return score;
}

}  // namespace tandem
