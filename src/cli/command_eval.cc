// tandem eval gsm8k: asks every question, extracts the number of each answer, and reports the score.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/deployment.h"
#include "cli/gsm8k_run.h"

namespace tandem {
namespace {

void show_progress(const Gsm8kScore& score, size_t total) {
  // A bar on a terminal; a line each tenth in a log.
  const bool is_terminal = ::isatty(STDERR_FILENO) == 1;
  const size_t tenth = std::max<size_t>(1, total / 10);
  if (!is_terminal && score.total % tenth != 0 && score.total != total) return;
  std::fprintf(stderr, "%s%llu/%zu answered, %llu right%s", is_terminal ? "\r" : "",
               static_cast<unsigned long long>(score.total), total,
               static_cast<unsigned long long>(score.strict),
               is_terminal && score.total != total ? "" : "\n");
}

}  // namespace

Result<int> run_eval_gsm8k(Settings& settings) {
  if (settings.eval.data.empty())
    return make_error(ErrorCode::invalid_argument, "eval.data: no file; name one with --data");
  TANDEM_ASSIGN(const std::vector<Gsm8kProblem> problems,
                load_gsm8k(settings.eval.data, settings.eval.limit));
  TANDEM_ASSIGN(const TextModel text, TextModel::load(settings.model));
  std::ofstream output;
  if (!settings.eval.output.empty()) {
    output.open(settings.eval.output);
    if (!output)
      return make_error(ErrorCode::invalid_argument, "eval.output: cannot write " + settings.eval.output);
  }
  TANDEM_ASSIGN(const std::unique_ptr<Deployment> deployment, Deployment::start(settings));

  TANDEM_ASSIGN(
      const Gsm8kRun run,
      run_gsm8k(deployment->engine(), text, problems, static_cast<uint32_t>(settings.eval.concurrency),
                static_cast<uint32_t>(settings.eval.max_tokens),
                [&](const Gsm8kScore& so_far, size_t) { show_progress(so_far, problems.size()); }));
  const Gsm8kScore& score = run.score;
  const double seconds = run.seconds;
  size_t tokens = 0;
  for (size_t i = 0; i < run.answers.size(); ++i) {
    tokens += run.answers[i].events.size();
    if (!output.is_open()) continue;
    const nlohmann::ordered_json line = {{"index", i},
                                         {"question", problems[i].question},
                                         {"answer", run.texts[i]},
                                         {"expected", problems[i].number},
                                         {"correct", strict_number(run.texts[i]) == problems[i].number},
                                         {"tokens", run.answers[i].events.size()},
                                         {"error", run.answers[i].finish.error.message}};
    output << line.dump() << '\n';
  }
  const Interval interval = wilson_interval(score.strict, score.total);
  const double share = static_cast<double>(score.strict) / static_cast<double>(score.total);
  if (settings.json) {
    const nlohmann::ordered_json document = {
        {"data", settings.eval.data},
        {"questions", score.total},
        {"correct", score.strict},
        {"correct_flexible", score.flexible},
        {"failed_requests", score.failed},
        {"accuracy", share},
        {"interval_95", {interval.low, interval.high}},
        {"seconds", seconds},
        {"generated_tokens", tokens},
        {"ranks", nlohmann::ordered_json::parse(rank_json(deployment->ranks()))}};
    std::printf("%s\n", document.dump().c_str());
  } else {
    std::printf(
        "%llu of %llu right (%.1f %%, 95 %% interval %.1f to %.1f); last number right in %llu; %llu requests "
        "failed\n",
        static_cast<unsigned long long>(score.strict), static_cast<unsigned long long>(score.total),
        100 * share, 100 * interval.low, 100 * interval.high, static_cast<unsigned long long>(score.flexible),
        static_cast<unsigned long long>(score.failed));
    std::printf("%zu tokens in %.1f s, %.1f tokens/s\n", tokens, seconds,
                static_cast<double>(tokens) / seconds);
  }
  return score.failed == 0 ? kExitSuccess : kExitFailure;
}

}  // namespace tandem
