// tandem generate: prompts from the command line or a file, answers on standard output.
#include <fmt/format.h>

#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>

#include "cli/batch_generation.h"
#include "cli/command.h"
#include "cli/commands.h"
#include "cli/deployment.h"
#include "cli/prompt_lines.h"

namespace tandem {
namespace {

using Json = nlohmann::ordered_json;

std::string hash_text(uint64_t hash) {
  return fmt::format("{:016x}", hash);
}

const char* reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::stop:
      return "stop";
    case FinishReason::length:
      return "length";
    case FinishReason::cancelled:
      return "cancelled";
    case FinishReason::error:
      return "error";
  }
  return "error";
}

// How the steps ran: what a replay is, and the host time of a layer, are in attention/engine.h.
Json execution_json(const EngineStats& stats) {
  const ExecutionStats& execution = stats.execution;
  const auto per_layer_us = [](double seconds, uint64_t layers) {
    return layers == 0 ? Json() : Json(seconds * 1e6 / static_cast<double>(layers));
  };
  const SpeculationStats& drafts = stats.speculation;
  return {{"decode_lanes", stats.decode_lanes},
          {"drafted", drafts.drafted},
          {"accepted", drafts.accepted},
          {"accepted_at", drafts.accepted_at},
          {"draft_rounds", drafts.rounds},
          {"eager_steps", execution.eager_steps},
          {"graph_replays", execution.graph_replays},
          {"graph_padded_replays", execution.graph_padded_replays},
          {"graph_misses", execution.graph_misses},
          {"graph_warmups", execution.graph_warmups},
          {"eager_host_us_per_layer", per_layer_us(execution.eager_host_seconds, execution.eager_layers)},
          {"replay_host_us_per_layer", per_layer_us(execution.replay_host_seconds, execution.replay_layers)}};
}

Result<Json> answer_json(const TextModel* text, const BatchAnswer& answer) {
  Json json = {
      {"finish_reason", reason_name(answer.finish.reason)},  {"prompt_tokens", answer.finish.prompt_tokens},
      {"cached_tokens", answer.finish.cached_tokens},        {"tokens", answer.tokens()},
      {"logits_hash", hash_text(answer.finish.logits_hash)}, {"seconds", answer.seconds},
      {"first_token_seconds", answer.first_token_seconds},   {"token_seconds", answer.token_seconds}};
  if (text != nullptr) {
    TANDEM_ASSIGN(json["text"], text->decode(answer.tokens()));
  }
  if (answer.finish.reason == FinishReason::error) json["error"] = answer.finish.error.message;
  return json;
}

// What one call printed: whether a prompt failed, and how many tokens came.
struct Printed {
  bool failed = false;
  size_t tokens = 0;
};

// Runs the prompts and prints their answers: one JSON document, or a text a line.
Result<Printed> answer_all(const Settings& settings, const TextModel* text, Deployment& deployment,
                           const std::vector<GenerationRequest>& requests) {
  const auto concurrency =
      settings.generate.one_by_one ? 1u : static_cast<uint32_t>(settings.serving.max_queue);
  const Instant start = now();
  const std::vector<BatchAnswer> answers = generate_batch(deployment.engine(), requests, concurrency);
  const double seconds = seconds_since(start);

  Printed printed;
  Json list = Json::array();
  for (const BatchAnswer& answer : answers) {
    TANDEM_ASSIGN(const Json json, answer_json(text, answer));
    list.push_back(json);
    printed.tokens += answer.events.size();
    const bool bad = answer.finish.reason == FinishReason::error;
    printed.failed = printed.failed || bad;
    if (bad) std::fprintf(stderr, "tandem: %s\n", answer.finish.error.message.c_str());
    if (!settings.json && !bad)
      std::printf("%s\n", text != nullptr ? json["text"].get<std::string>().c_str()
                                          : Json(answer.tokens()).dump().c_str());
  }
  if (settings.json) {
    const Json document = {{"model", settings.model},
                           {"ranks", Json::parse(rank_json(deployment.ranks()))},
                           {"logits_hash", hash_text(combined_hash(answers))},
                           {"counters", Json::parse(counters_json(deployment.counters()))},
                           {"seconds", seconds},
                           {"generated_tokens", printed.tokens},
                           {"execution", execution_json(deployment.engine().stats())},
                           {"answers", list}};
    std::printf("%s\n", document.dump().c_str());
  } else {
    std::fprintf(stderr, "%zu tokens in %.2f s, %.1f tokens/s\n", printed.tokens, seconds,
                 static_cast<double>(printed.tokens) / seconds);
  }
  std::fflush(stdout);  // a reader at the other end of a pipe waits for this line
  return printed;
}

// --prompts-file -: each line is answered before the next one is read, with the model held in between. A line
// that is refused is named, on both streams for readers of JSON, and the next ones are answered.
Result<int> answer_lines(const Settings& settings, const PromptReader& reader, Deployment& deployment) {
  bool failed = false;
  std::string line;
  for (size_t number = 1; std::getline(std::cin, line); ++number) {
    if (line.empty()) continue;
    const auto requests = reader.line(line, "standard input line " + std::to_string(number));
    if (!requests) {
      failed = true;
      std::fprintf(stderr, "tandem: %s\n", requests.error().message.c_str());
      if (settings.json) std::printf("%s\n", Json{{"error", requests.error().message}}.dump().c_str());
      std::fflush(stdout);
      continue;
    }
    TANDEM_ASSIGN(const Printed printed, answer_all(settings, reader.text(), deployment, *requests));
    failed = failed || printed.failed;
  }
  return failed ? kExitFailure : kExitSuccess;
}

}  // namespace

Result<int> run_generate(Settings& settings) {
  if (settings.generate.prompt.empty() == settings.generate.prompts_file.empty()) {
    return make_error(ErrorCode::invalid_argument, "give one of --prompt and --prompts-file");
  }
  TANDEM_ASSIGN(const PromptReader reader, PromptReader::open(settings));
  const bool lines = settings.generate.prompts_file == "-";
  std::vector<GenerationRequest> requests;
  if (!lines) {
    TANDEM_ASSIGN(requests, reader.all());
  }
  TANDEM_ASSIGN(const std::unique_ptr<Deployment> deployment, Deployment::start(settings));
  if (lines) return answer_lines(settings, reader, *deployment);
  TANDEM_ASSIGN(const Printed printed, answer_all(settings, reader.text(), *deployment, requests));
  return printed.failed ? kExitFailure : kExitSuccess;
}

}  // namespace tandem
