// tandem generate: prompts from the command line or a file, answers on standard output.
#include <fmt/format.h>

#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "cli/batch_generation.h"
#include "cli/command.h"
#include "cli/commands.h"
#include "cli/deployment.h"
#include "cli/text_model.h"

namespace tandem {
namespace {

using Json = nlohmann::ordered_json;

// A model folder without a tokenizer can still continue token ids.
struct Prompts {
  std::optional<TextModel> text;
  std::vector<GenerationRequest> requests;
};

std::string hash_text(uint64_t hash) {
  return fmt::format("{:016x}", hash);
}

Status add_text(const Settings& settings, const TextModel& model, std::vector<GenerationRequest>& requests,
                const std::string& text) {
  GenerationRequest request;
  auto ids = settings.generate.chat ? model.encode_question(text) : model.encode_text(text);
  if (!ids) return std::unexpected(ids.error());
  request.prompt = std::move(*ids);
  requests.push_back(std::move(request));
  return {};
}

Status add_line(const Settings& settings, Prompts& prompts, const std::string& line,
                const std::string& place) {
  const Json json = Json::parse(line, nullptr, false);
  if (json.is_object() && json.contains("prompt") && json["prompt"].is_string()) {
    if (!prompts.text)
      return make_error(ErrorCode::invalid_argument,
                        place + ": text, and " + settings.model + " has no tokenizer.json; give prompt_ids");
    return add_text(settings, *prompts.text, prompts.requests, json["prompt"].get<std::string>());
  }
  if (json.is_object() && json.contains("prompt_ids") && json["prompt_ids"].is_array()) {
    GenerationRequest request;
    for (const Json& id : json["prompt_ids"]) {
      if (!id.is_number_integer() || id.get<int64_t>() < INT32_MIN || id.get<int64_t>() > INT32_MAX) {
        return make_error(ErrorCode::invalid_argument, place + ": " + id.dump() + " is not a token id");
      }
      request.prompt.push_back(id.get<int32_t>());
    }
    prompts.requests.push_back(std::move(request));
    return {};
  }
  return make_error(ErrorCode::invalid_argument, place + ": not an object with prompt or prompt_ids");
}

Status read_prompts(const Settings& settings, Prompts& prompts) {
  const GenerateSettings& generate = settings.generate;
  if (generate.prompt.empty() == generate.prompts_file.empty()) {
    return make_error(ErrorCode::invalid_argument, "give one of --prompt and --prompts-file");
  }
  if (file_exists(settings.model + "/tokenizer.json")) {
    auto text = TextModel::load(settings.model);
    if (!text) return std::unexpected(text.error());
    prompts.text = std::move(*text);
  }
  if (!generate.prompt.empty()) {
    if (!prompts.text)
      return make_error(ErrorCode::invalid_argument,
                        settings.model + " has no tokenizer.json; give token ids with --prompts-file");
    std::string text = generate.prompt;
    if (text == "-") text.assign(std::istreambuf_iterator<char>(std::cin), {});
    return add_text(settings, *prompts.text, prompts.requests, text);
  }
  std::ifstream file(generate.prompts_file);
  if (!file)
    return make_error(ErrorCode::not_found, "generate.prompts_file: cannot open " + generate.prompts_file);
  std::string line;
  for (size_t number = 1; std::getline(file, line); ++number) {
    if (!line.empty())
      TANDEM_TRY(
          add_line(settings, prompts, line, generate.prompts_file + " line " + std::to_string(number)));
  }
  if (prompts.requests.empty())
    return make_error(ErrorCode::invalid_argument, generate.prompts_file + " has no prompts");
  return {};
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

Result<Json> answer_json(const Prompts& prompts, const BatchAnswer& answer) {
  Json json = {
      {"finish_reason", reason_name(answer.finish.reason)},  {"prompt_tokens", answer.finish.prompt_tokens},
      {"cached_tokens", answer.finish.cached_tokens},        {"tokens", answer.tokens()},
      {"logits_hash", hash_text(answer.finish.logits_hash)}, {"seconds", answer.seconds},
      {"first_token_seconds", answer.first_token_seconds},   {"token_seconds", answer.token_seconds}};
  if (prompts.text) {
    TANDEM_ASSIGN(const std::string text, prompts.text->decode(answer.tokens()));
    json["text"] = text;
  }
  if (answer.finish.reason == FinishReason::error) json["error"] = answer.finish.error.message;
  return json;
}

}  // namespace

Result<int> run_generate(Settings& settings) {
  Prompts prompts;
  TANDEM_TRY(read_prompts(settings, prompts));
  for (GenerationRequest& request : prompts.requests) {
    request.sampling.temperature = static_cast<float>(settings.generate.temperature);
    request.sampling.seed = static_cast<uint64_t>(settings.generate.seed);
    request.sampling.max_tokens = static_cast<uint32_t>(settings.generate.max_tokens);
    request.sampling.ignore_eos = settings.generate.ignore_eos;
    request.hash_logits = settings.json;
  }
  TANDEM_ASSIGN(const std::unique_ptr<Deployment> deployment, Deployment::start(settings));
  const auto concurrency =
      settings.generate.one_by_one ? 1u : static_cast<uint32_t>(settings.serving.max_queue);
  const Instant start = now();
  const std::vector<BatchAnswer> answers =
      generate_batch(deployment->engine(), prompts.requests, concurrency);
  const double seconds = seconds_since(start);

  bool failed = false;
  Json list = Json::array();
  size_t tokens = 0;
  for (const BatchAnswer& answer : answers) {
    TANDEM_ASSIGN(const Json json, answer_json(prompts, answer));
    list.push_back(json);
    tokens += answer.events.size();
    const bool bad = answer.finish.reason == FinishReason::error;
    failed = failed || bad;
    if (bad) std::fprintf(stderr, "tandem: %s\n", answer.finish.error.message.c_str());
    if (!settings.json && !bad)
      std::printf("%s\n", prompts.text ? json["text"].get<std::string>().c_str()
                                       : Json(answer.tokens()).dump().c_str());
  }
  if (settings.json) {
    const Json document = {{"model", settings.model},
                           {"ranks", Json::parse(rank_json(deployment->ranks()))},
                           {"logits_hash", hash_text(combined_hash(answers))},
                           {"counters", Json::parse(counters_json(deployment->counters()))},
                           {"seconds", seconds},
                           {"generated_tokens", tokens},
                           {"execution", execution_json(deployment->engine().stats())},
                           {"answers", list}};
    std::printf("%s\n", document.dump().c_str());
  } else {
    std::fprintf(stderr, "%zu tokens in %.2f s, %.1f tokens/s\n", tokens, seconds,
                 static_cast<double>(tokens) / seconds);
  }
  return failed ? kExitFailure : kExitSuccess;
}

}  // namespace tandem
