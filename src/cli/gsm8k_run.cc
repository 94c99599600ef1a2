#include "cli/gsm8k_run.h"

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/batch_generation.h"

namespace tandem {
namespace {

using Json = nlohmann::ordered_json;

// Takes an answer in: its score, who hears of it.
void take(Gsm8kRun& run, const Gsm8kTask& task, size_t index, Gsm8kAnswer answer,
          const Gsm8kListener& on_answer) {
  answer.is_strict = strict_number(answer.text) == task.problems[index].number;
  answer.is_flexible = flexible_number(answer.text) == task.problems[index].number;
  run.score.add(answer);
  run.answers[index] = std::move(answer);
  if (on_answer) on_answer(index, run.answers[index]);
}

}  // namespace

void Gsm8kScore::add(const Gsm8kAnswer& answer) {
  ++total;
  if (!answer.error.empty()) ++failed;
  if (answer.is_strict) ++strict;
  if (answer.is_flexible) ++flexible;
}

Result<std::vector<Gsm8kProblem>> load_gsm8k(const std::string& path, int64_t limit) {
  TANDEM_ASSIGN(std::vector<Gsm8kProblem> problems, load_gsm8k(path));
  if (limit > 0 && problems.size() > static_cast<size_t>(limit)) problems.resize(static_cast<size_t>(limit));
  return problems;
}

Result<Gsm8kRun> run_gsm8k(Engine& engine, const TextModel& text, const Gsm8kTask& task,
                           const Gsm8kListener& on_answer) {
  std::vector<std::pair<std::string, std::string>> turns;
  turns.reserve(task.shots.size());
  for (const Gsm8kProblem& shot : task.shots) turns.emplace_back(shot.question, shot.answer);
  std::vector<GenerationRequest> requests;
  for (const Gsm8kProblem& problem : task.problems) {
    GenerationRequest request;
    TANDEM_ASSIGN(request.prompt, text.encode_question(turns, problem.question));
    request.sampling.temperature = 0;
    request.sampling.max_tokens = task.max_tokens;
    requests.push_back(std::move(request));
  }
  Gsm8kRun run;
  run.answers.resize(task.problems.size());
  const Instant start = now();
  generate_batch(engine, requests, task.concurrency, [&](size_t index, const BatchAnswer& batch) {
    Gsm8kAnswer answer;
    if (batch.finish.reason == FinishReason::error) answer.error = batch.finish.error.message;
    answer.text = text.decode(batch.tokens()).value_or("");
    answer.tokens = batch.events.size();
    take(run, task, index, std::move(answer), on_answer);
  });
  run.seconds = seconds_since(start);
  return run;
}

Gsm8kRun run_gsm8k(OpenAiClient& client, const std::string& model, const Gsm8kTask& task,
                   const Gsm8kListener& on_answer) {
  Json turns = Json::array();
  for (const Gsm8kProblem& shot : task.shots) {
    turns.push_back({{"role", "user"}, {"content", shot.question}});
    turns.push_back({{"role", "assistant"}, {"content", shot.answer}});
  }
  std::vector<std::string> bodies;
  for (const Gsm8kProblem& problem : task.problems) {
    Json messages = turns;
    messages.push_back({{"role", "user"}, {"content", problem.question}});
    bodies.push_back(
        Json{{"model", model}, {"messages", messages}, {"temperature", 0}, {"max_tokens", task.max_tokens}}
            .dump());
  }
  Gsm8kRun run;
  run.answers.resize(task.problems.size());
  const Instant start = now();
  ask_all(client, "/v1/chat/completions", bodies, task.concurrency,
          [&](size_t index, const OpenAiAnswer& reply) {
            Gsm8kAnswer answer;
            answer.text = reply.text;
            answer.error = reply.error;
            if (!reply.ok() && reply.status != 0 && reply.status != 200)
              answer.error = "status " + std::to_string(reply.status) + ": " + reply.error;
            answer.tokens = reply.completion_tokens < 0 ? 0 : static_cast<uint64_t>(reply.completion_tokens);
            take(run, task, index, std::move(answer), on_answer);
          });
  run.seconds = seconds_since(start);
  return run;
}

std::string gsm8k_line(size_t index, const Gsm8kProblem& problem, const Gsm8kAnswer& answer) {
  return Json{{"index", index},
              {"question", problem.question},
              {"answer", answer.text},
              {"expected", problem.number},
              {"correct", answer.is_strict},
              {"correct_flexible", answer.is_flexible},
              {"tokens", answer.tokens},
              {"error", answer.error}}
      .dump(-1, ' ', false, Json::error_handler_t::replace);
}

Result<std::vector<std::pair<size_t, Gsm8kAnswer>>> read_gsm8k_lines(const std::string& path,
                                                                     std::span<const Gsm8kProblem> problems) {
  std::vector<std::pair<size_t, Gsm8kAnswer>> answers;
  std::ifstream file(path);
  size_t number = 0;
  for (std::string text; std::getline(file, text);) {
    ++number;
    const auto refuse = [&](const std::string& why) {
      return make_error(ErrorCode::data_loss, path + " line " + std::to_string(number) + ": " + why +
                                                  "; without --resume the file is written anew");
    };
    const Json line = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (line.is_discarded() && file.eof()) break;  // cut off while it was written
    try {
      const size_t index = line.at("index").get<size_t>();
      if (index >= problems.size() || line.at("question") != problems[index].question)
        return refuse("not a question of this data");
      Gsm8kAnswer answer;
      answer.text = line.at("answer").get<std::string>();
      answer.tokens = line.at("tokens").get<uint64_t>();
      answer.error = line.at("error").get<std::string>();
      answer.is_strict = strict_number(answer.text) == problems[index].number;
      answer.is_flexible = flexible_number(answer.text) == problems[index].number;
      if (answer.error.empty()) answers.emplace_back(index, std::move(answer));
    } catch (const Json::exception&) {
      return refuse("not an answer of eval gsm8k");
    }
  }
  return answers;
}

}  // namespace tandem
