// tandem trace: runs prompts in a placement, or asks ranks that run, records what lanes, wire and experts
// did, and says where the time went.
#include <fmt/format.h>

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "cli/batch_generation.h"
#include "cli/command.h"
#include "cli/commands.h"
#include "cli/deployment.h"
#include "cli/model_folder.h"
#include "cli/prompt_lines.h"
#include "cli/trace_fetch.h"
#include "cli/trace_file.h"

namespace tandem {
namespace {

using Json = nlohmann::ordered_json;

// Prompts of random tokens, whose answers do not end early: a load whose size is known.
Result<std::vector<GenerationRequest>> random_prompts(const Settings& settings) {
  TANDEM_ASSIGN(const ModelConfig config, read_model_config(settings.model));
  std::mt19937_64 random(static_cast<uint64_t>(settings.generate.seed));
  std::vector<GenerationRequest> requests(static_cast<size_t>(settings.trace.sequences));
  for (GenerationRequest& request : requests) {
    for (int64_t i = 0; i < settings.trace.prompt_tokens; ++i)
      request.prompt.push_back(static_cast<int32_t>(random() % config.vocab_size));
    request.sampling.temperature = static_cast<float>(settings.generate.temperature);
    request.sampling.seed = static_cast<uint64_t>(settings.generate.seed);
    request.sampling.max_tokens = static_cast<uint32_t>(settings.generate.max_tokens);
    request.sampling.ignore_eos = true;
    request.hash_logits = settings.json;
  }
  return requests;
}

Result<std::vector<GenerationRequest>> prompts_of(const Settings& settings) {
  const GenerateSettings& generate = settings.generate;
  if (generate.prompt.empty() && generate.prompts_file.empty()) return random_prompts(settings);
  if (!generate.prompt.empty() && !generate.prompts_file.empty()) {
    return make_error(ErrorCode::invalid_argument, "generate.prompts_file: " + generate.prompts_file +
                                                       " with generate.prompt; use one of them");
  }
  if (generate.prompts_file == "-") {
    return make_error(
        ErrorCode::invalid_argument,
        "generate.prompts_file: - asks for prompts one after another; trace wants a file of them");
  }
  TANDEM_ASSIGN(const PromptReader reader, PromptReader::open(settings));
  return reader.all();
}

// Before anything is done for it.
Status check_writable(const std::string& output) {
  if (std::ofstream(output)) return {};
  return make_error(ErrorCode::invalid_argument, "trace.output: cannot write " + output);
}

Result<int> print_file(const Settings& settings, const std::string& path) {
  TANDEM_ASSIGN(const std::string times, read_dead_times(path));
  TANDEM_ASSIGN(const std::string tables, dead_time_tables(times));
  if (settings.json) {
    std::printf("%s\n",
                Json{{"command", "trace"}, {"trace", path}, {"ranks", Json::parse(times)}}.dump().c_str());
  } else {
    std::fputs(tables.c_str(), stdout);
  }
  return kExitSuccess;
}

// Of ranks that run.
Result<int> fetch_and_print(const Settings& settings) {
  TANDEM_TRY(check_writable(settings.trace.output));
  TANDEM_TRY(fetch_traces(settings.trace));
  TANDEM_ASSIGN(const int code, print_file(settings, settings.trace.output));
  if (!settings.json) std::printf("\n%s: open it in ui.perfetto.dev\n", settings.trace.output.c_str());
  return code;
}

}  // namespace

Result<int> run_trace(Settings& settings) {
  if (!settings.trace.read.empty()) return print_file(settings, settings.trace.read);
  if (!settings.trace.url.empty()) return fetch_and_print(settings);
  TANDEM_TRY(read_model_config(settings.model));
  const std::string& output = settings.trace.output;
  TANDEM_ASSIGN(const std::vector<GenerationRequest> requests, prompts_of(settings));
  TANDEM_TRY(check_writable(output));
  TemporaryFiles parts;
  for (int64_t rank = 0; rank < settings.up.attention; ++rank)
    parts.paths.push_back(rank_trace_path(output, rank));
  Settings traced = settings;
  traced.engine.trace = settings.up.attention > 1 ? output : parts.paths.front();
  TANDEM_ASSIGN(const std::unique_ptr<Deployment> deployment, Deployment::start(traced));
  const Json ranks = Json::parse(rank_json(deployment->ranks()));
  const Instant start = now();
  const std::vector<BatchAnswer> answers =
      generate_batch(deployment->engine(), requests, static_cast<uint32_t>(settings.serving.max_queue));
  const double seconds = seconds_since(start);
  deployment->end();

  size_t tokens = 0;
  for (const BatchAnswer& answer : answers) {
    if (answer.finish.reason == FinishReason::error) return std::unexpected(answer.finish.error);
    tokens += answer.events.size();
  }
  TANDEM_TRY(join_traces(parts.paths, output));
  TANDEM_ASSIGN(const std::string times, read_dead_times(output));
  TANDEM_ASSIGN(const std::string tables, dead_time_tables(times));
  if (settings.json) {
    const Json document = {{"command", "trace"},
                           {"model", settings.model},
                           {"trace", output},
                           {"deployment", ranks},
                           {"seconds", seconds},
                           {"generated_tokens", tokens},
                           {"logits_hash", fmt::format("{:016x}", combined_hash(answers))},
                           {"ranks", Json::parse(times)}};
    std::printf("%s\n", document.dump().c_str());
  } else {
    std::printf("%zu tokens in %.3f s, %.1f tokens/s\n\n%s\n%s: open it in ui.perfetto.dev\n", tokens,
                seconds, static_cast<double>(tokens) / seconds, tables.c_str(), output.c_str());
  }
  return kExitSuccess;
}

}  // namespace tandem
