// Perplexity of a text by sliding windows: each token is scored once, by the logits of the window that it
// stands in with as much context before it as the stride leaves.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "attention/engine.h"
#include "base/result.h"

namespace tandem {

// Tokens [begin, end) are computed, [scored, end) are scored by what stands before them in the window.
struct ScoreWindow {
  uint64_t begin = 0, scored = 0, end = 0;
  bool operator==(const ScoreWindow&) const = default;
};
// A window every `stride` tokens, at most `window` long, up to the text's end. The first token of the text
// has nothing before it and is never scored; with stride == window the first of each window is not either.
std::vector<ScoreWindow> score_windows(uint64_t tokens, uint64_t window, uint64_t stride);

struct PerplexityScore {
  uint64_t tokens = 0, scored = 0, windows = 0, bytes = 0;  // bytes: of the whole text
  double nats = 0;                                          // sum over the scored tokens
  double seconds = 0;

  double nats_per_token() const { return scored == 0 ? 0 : nats / static_cast<double>(scored); }
  double bits_per_token() const;
  double bits_per_byte() const;
  double perplexity() const;
};

// Scores `tokens` with the engine's own logits, `concurrency` windows at once. Errors: the engine's, of the
// first window that fails; a token that the model holds for impossible is 9999 nats. `on_window(done)` as
// they come, on this thread.
Result<PerplexityScore> score_text(Engine& engine, std::span<const int32_t> tokens, uint64_t window,
                                   uint64_t stride, uint32_t concurrency,
                                   const std::function<void(size_t)>& on_window);

}  // namespace tandem
