#include "cli/gsm8k_run.h"

#include <cstdio>

namespace tandem {

Result<std::vector<Gsm8kProblem>> load_gsm8k(const std::string& path, int64_t limit) {
  TANDEM_ASSIGN(std::vector<Gsm8kProblem> problems, load_gsm8k(path));
  if (limit > 0 && problems.size() > static_cast<size_t>(limit)) problems.resize(static_cast<size_t>(limit));
  return problems;
}

Result<Gsm8kRun> run_gsm8k(Engine& engine, const TextModel& text, std::span<const Gsm8kProblem> problems,
                           uint32_t concurrency, uint32_t max_tokens,
                           const std::function<void(const Gsm8kScore&, size_t)>& on_answer) {
  std::vector<GenerationRequest> requests;
  for (const Gsm8kProblem& problem : problems) {
    GenerationRequest request;
    TANDEM_ASSIGN(request.prompt, text.encode_question(problem.question));
    request.sampling.temperature = 0;
    request.sampling.max_tokens = max_tokens;
    requests.push_back(std::move(request));
  }
  Gsm8kRun run;
  run.texts.resize(problems.size());
  const Instant start = now();
  run.answers = generate_batch(engine, requests, concurrency, [&](size_t index, const BatchAnswer& answer) {
    Gsm8kScore& score = run.score;
    ++score.total;
    if (answer.finish.reason == FinishReason::error) {
      ++score.failed;
      std::fprintf(stderr, "question %zu: %s\n", index + 1, answer.finish.error.message.c_str());
    }
    run.texts[index] = text.decode(answer.tokens()).value_or("");
    if (strict_number(run.texts[index]) == problems[index].number) ++score.strict;
    if (flexible_number(run.texts[index]) == problems[index].number) ++score.flexible;
    if (on_answer) on_answer(score, index);
  });
  run.seconds = seconds_since(start);
  return run;
}

}  // namespace tandem
