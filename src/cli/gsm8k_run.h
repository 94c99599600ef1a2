// Asks the questions of a GSM8K-format file and scores the answers, for `eval gsm8k` and for the accuracy of
// a measured placement: through an engine of this process, or any server of OpenAI's API. One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "cli/gsm8k.h"
#include "cli/openai_client.h"
#include "cli/text_model.h"

namespace tandem {

struct Gsm8kAnswer {
  std::string text;
  uint64_t tokens = 0;
  std::string error;                            // empty: the request did not fail
  bool is_strict = false, is_flexible = false;  // right by the "####" line; by the last number anywhere
};

struct Gsm8kScore {
  uint64_t total = 0, strict = 0, flexible = 0, failed = 0;
  void add(const Gsm8kAnswer& answer);
};

struct Gsm8kTask {
  std::vector<Gsm8kProblem> problems;
  std::vector<Gsm8kProblem> shots;  // answered before each question, as earlier turns of the chat
  uint32_t concurrency = 32;
  uint32_t max_tokens = 256;
};

struct Gsm8kRun {
  Gsm8kScore score;
  std::vector<Gsm8kAnswer> answers;  // of each problem
  double seconds = 0;
};

using Gsm8kListener = std::function<void(size_t index, const Gsm8kAnswer&)>;

// At most `limit` problems of the file; 0: all.
Result<std::vector<Gsm8kProblem>> load_gsm8k(const std::string& path, int64_t limit);

// Greedy answers. `on_answer` as they come.
Result<Gsm8kRun> run_gsm8k(Engine& engine, const TextModel& text, const Gsm8kTask& task,
                           const Gsm8kListener& on_answer = {});
// The same through chat completions of `model` on a server.
Gsm8kRun run_gsm8k(OpenAiClient& client, const std::string& model, const Gsm8kTask& task,
                   const Gsm8kListener& on_answer = {});

// A line of `--output`, without its end; and the answers of the lines of such a file, by index, for a run
// that goes on where it was broken off: answers of failed requests are left out, a last line that was cut
// off, too. data_loss: a line that is none, or that belongs to another question of `problems`.
std::string gsm8k_line(size_t index, const Gsm8kProblem& problem, const Gsm8kAnswer& answer);
Result<std::vector<std::pair<size_t, Gsm8kAnswer>>> read_gsm8k_lines(const std::string& path,
                                                                     std::span<const Gsm8kProblem> problems);

}  // namespace tandem
