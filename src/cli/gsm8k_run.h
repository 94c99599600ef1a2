// Gsm8kRun: asks the questions of a GSM8K-format file and scores the answers, for `eval gsm8k` and for the
// accuracy of a measured placement. One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "cli/batch_generation.h"
#include "cli/gsm8k.h"
#include "cli/text_model.h"

namespace tandem {

struct Gsm8kScore {
  uint64_t total = 0, strict = 0, flexible = 0, failed = 0;
};

struct Gsm8kRun {
  Gsm8kScore score;
  std::vector<std::string> texts;  // of each problem's answer
  std::vector<BatchAnswer> answers;
  double seconds = 0;
};

// At most `limit` problems of the file; 0: all.
Result<std::vector<Gsm8kProblem>> load_gsm8k(const std::string& path, int64_t limit);

// Greedy answers of at most `max_tokens`. `on_answer(score so far, index)` as they come.
Result<Gsm8kRun> run_gsm8k(Engine& engine, const TextModel& text, std::span<const Gsm8kProblem> problems,
                           uint32_t concurrency, uint32_t max_tokens,
                           const std::function<void(const Gsm8kScore&, size_t)>& on_answer = {});

}  // namespace tandem
