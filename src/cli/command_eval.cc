// tandem eval gsm8k: asks every question, extracts the number of each answer, and reports the score.
// tandem eval compare: two of its outputs beside each other.
#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/answer_comparison.h"
#include "cli/command.h"
#include "cli/commands.h"
#include "cli/deployment.h"
#include "cli/gsm8k_run.h"
#include "cli/progress.h"

namespace tandem {
namespace {

using Json = nlohmann::ordered_json;

// Who answers: ranks of this host, or a server.
struct Answerer {
  std::unique_ptr<Deployment> deployment;
  std::unique_ptr<TextModel> text;
  std::unique_ptr<OpenAiClient> client;
  std::string model;  // of the server

  static Result<Answerer> start(const Settings& settings) {
    Answerer who;
    const std::string& url = settings.eval.base_url;
    if (url.empty()) {
      TANDEM_ASSIGN(TextModel text, TextModel::load(settings.model));
      who.text = std::make_unique<TextModel>(std::move(text));
      TANDEM_ASSIGN(who.deployment, Deployment::start(settings));
      return who;
    }
    std::string key = settings.eval.api_key;
    if (const char* found = std::getenv("OPENAI_API_KEY"); key.empty() && found != nullptr) key = found;
    TANDEM_ASSIGN(who.client, OpenAiClient::create(url, key));
    TANDEM_ASSIGN(who.model, choose_model(*who.client,
                                          wanted_model(settings.serving.served_model_name, settings.model)));
    return who;
  }

  Result<Gsm8kRun> run(const Gsm8kTask& task, const Gsm8kListener& on_answer) const {
    if (client) return run_gsm8k(*client, model, task, on_answer);
    return run_gsm8k(deployment->engine(), *text, task, on_answer);
  }
};

Result<std::vector<Gsm8kProblem>> load_shots(const EvalSettings& eval) {
  std::vector<Gsm8kProblem> shots;
  if (eval.num_fewshot == 0) return shots;
  if (eval.fewshot_data.empty())
    return make_error(ErrorCode::invalid_argument,
                      "eval.fewshot_data: no file for " + std::to_string(eval.num_fewshot) +
                          " examples; name one with --fewshot-data, such as the training set");
  TANDEM_ASSIGN(shots, load_gsm8k(eval.fewshot_data, eval.num_fewshot));
  if (shots.size() == static_cast<size_t>(eval.num_fewshot)) return shots;
  return make_error(ErrorCode::invalid_argument,
                    fmt::format("eval.num_fewshot: {} and {} has {} examples; use fewer", eval.num_fewshot,
                                eval.fewshot_data, shots.size()));
}

void print(const Settings& settings, const Answerer& who, const Gsm8kScore& score, double seconds,
           uint64_t tokens, uint64_t resumed) {
  const Interval interval = wilson_interval(score.strict, score.total);
  const Interval flexible = wilson_interval(score.flexible, score.total);
  const double share = static_cast<double>(score.strict) / static_cast<double>(score.total);
  if (settings.json) {
    Json document = {{"data", settings.eval.data},
                     {"questions", score.total},
                     {"correct", score.strict},
                     {"correct_flexible", score.flexible},
                     {"failed_requests", score.failed},
                     {"accuracy", share},
                     {"interval_95", {interval.low, interval.high}},
                     {"interval_95_flexible", {flexible.low, flexible.high}},
                     {"fewshot", settings.eval.num_fewshot},
                     {"resumed", resumed},
                     {"seconds", seconds},
                     {"generated_tokens", tokens}};
    if (who.client) {
      document["url"] = who.client->url();
      document["model"] = who.model;
    } else {
      document["ranks"] = Json::parse(rank_json(who.deployment->ranks()));
    }
    std::printf("%s\n", document.dump().c_str());
    return;
  }
  std::printf(
      "%llu of %llu right (%.1f %%, 95 %% interval %.1f to %.1f); last number right in %llu; %llu requests "
      "failed\n",
      static_cast<unsigned long long>(score.strict), static_cast<unsigned long long>(score.total),
      100 * share, 100 * interval.low, 100 * interval.high, static_cast<unsigned long long>(score.flexible),
      static_cast<unsigned long long>(score.failed));
  if (resumed > 0)
    std::printf("%llu of them from %s\n", static_cast<unsigned long long>(resumed),
                settings.eval.output.c_str());
  std::printf("%llu tokens in %.1f s, %.1f tokens/s\n", static_cast<unsigned long long>(tokens), seconds,
              seconds > 0 ? static_cast<double>(tokens) / seconds : 0);
}

}  // namespace

Result<int> run_eval_gsm8k(Settings& settings) {
  const EvalSettings& eval = settings.eval;
  if (eval.data.empty())
    return make_error(ErrorCode::invalid_argument, "eval.data: no file; name one with --data");
  TANDEM_ASSIGN(const std::vector<Gsm8kProblem> problems, load_gsm8k(eval.data, eval.limit));
  Gsm8kTask task;
  TANDEM_ASSIGN(task.shots, load_shots(eval));
  task.concurrency = static_cast<uint32_t>(eval.concurrency);
  task.max_tokens = static_cast<uint32_t>(eval.max_tokens);

  Gsm8kScore score;
  std::vector<bool> has_answer(problems.size(), false);
  std::vector<std::pair<size_t, Gsm8kAnswer>> kept;
  if (eval.resume) {
    if (eval.output.empty())
      return make_error(ErrorCode::invalid_argument,
                        "eval.resume: no file to go on from; name it with --output");
    TANDEM_ASSIGN(kept, read_gsm8k_lines(eval.output, problems));
  }
  std::ofstream output;
  if (!eval.output.empty()) {
    output.open(eval.output);
    if (!output) return make_error(ErrorCode::invalid_argument, "eval.output: cannot write " + eval.output);
  }
  for (const auto& [index, answer] : kept) {
    if (has_answer[index]) continue;
    has_answer[index] = true;
    score.add(answer);
    output << gsm8k_line(index, problems[index], answer) << '\n';
  }
  const uint64_t resumed = score.total;
  std::vector<size_t> indices;  // of task.problems in the file
  for (size_t i = 0; i < problems.size(); ++i) {
    if (has_answer[i]) continue;
    indices.push_back(i);
    task.problems.push_back(problems[i]);
  }
  TANDEM_ASSIGN(const Answerer who, Answerer::start(settings));

  uint64_t tokens = 0;
  double seconds = 0;
  {
    Progress progress("questions", problems.size());
    const auto on_answer = [&](size_t at, const Gsm8kAnswer& answer) {
      const size_t index = indices[at];
      score.add(answer);
      tokens += answer.tokens;
      if (!answer.error.empty()) std::fprintf(stderr, "question %zu: %s\n", index + 1, answer.error.c_str());
      // At once, so that a run that is broken off has its answers.
      if (output.is_open()) output << gsm8k_line(index, problems[index], answer) << std::endl;
      progress.show(score.total, fmt::format("{} right, {} failed", score.strict, score.failed));
    };
    TANDEM_ASSIGN(const Gsm8kRun run, who.run(task, on_answer));
    seconds = run.seconds;
  }
  print(settings, who, score, seconds, tokens, resumed);
  return score.failed == 0 ? kExitSuccess : kExitFailure;
}

Result<int> run_eval_compare(Settings& settings) {
  const std::vector<std::string>& files = settings.eval.files;
  if (files.size() != 2)
    return make_error(
        ErrorCode::invalid_argument,
        fmt::format("eval.files: {} files; name two outputs of tandem eval gsm8k", files.size()));
  TANDEM_ASSIGN(const AnswerComparison compared, compare_answers(files[0], files[1]));
  std::fputs(settings.json ? (compared.json() + "\n").c_str() : compared.text().c_str(), stdout);
  return kExitSuccess;
}

}  // namespace tandem
