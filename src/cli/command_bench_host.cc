// tandem bench host: host time of a layer, eager beside replay, on the deployment that the settings describe.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "cli/batch_generation.h"
#include "cli/command.h"
#include "cli/commands.h"
#include "cli/deployment.h"
#include "cli/model_folder.h"

namespace tandem {
namespace {

// Runs of each kind, one after the other in turns, so that a machine that gets slower slows both.
constexpr int kRounds = 3;
// Answers at once; tokens of each: some hundred decode steps a round.
constexpr uint32_t kSequences = 8;
constexpr uint32_t kTokens = 192;

struct Sample {
  double host_us_per_layer = 0, step_us = 0;
  uint64_t layers = 0, misses = 0;
};

Result<Sample> measure(Settings settings, const char* execution, uint32_t vocab_size) {
  settings.afd.execution = execution;
  TANDEM_ASSIGN(const std::unique_ptr<Deployment> deployment, Deployment::start(settings));
  std::vector<GenerationRequest> requests(kSequences);
  for (uint32_t i = 0; i < kSequences; ++i) {
    requests[i].prompt = {static_cast<int32_t>(i % vocab_size), static_cast<int32_t>((i + 1) % vocab_size)};
    requests[i].sampling.temperature = 0;
    requests[i].sampling.max_tokens = kTokens;
    requests[i].sampling.ignore_eos = true;
  }
  for (const BatchAnswer& answer : generate_batch(deployment->engine(), requests, kSequences)) {
    if (answer.finish.reason == FinishReason::error) return std::unexpected(answer.finish.error);
  }
  const EngineStats stats = deployment->engine().stats();
  const ExecutionStats& ran = stats.execution;
  const bool graph = std::string_view(execution) == "graph";
  Sample sample;
  sample.layers = graph ? ran.replay_layers : ran.eager_layers;
  sample.misses = ran.graph_misses;
  const double host = graph ? ran.replay_host_seconds : ran.eager_host_seconds;
  if (sample.layers == 0)
    return make_error(ErrorCode::internal, fmt::format("bench host: no {} step ran", execution));
  sample.host_us_per_layer = host * 1e6 / static_cast<double>(sample.layers);
  sample.step_us = stats.step_seconds * 1e6 / static_cast<double>(std::max<uint64_t>(stats.steps, 1));
  return sample;
}

// Every measurement starts the same deployment: what it says of loading and connecting is said once.
void keep_quiet(Settings& settings) {
  if (settings.engine.log_level != "info") return;
  settings.engine.log_level = "warning";  // of the rank processes
  set_log_level(LogLevel::warning);
}

}  // namespace

Result<int> run_bench_host(Settings& settings) {
  TANDEM_ASSIGN(const ModelConfig config, read_model_config(settings.model));
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  std::string text = fmt::format("{:<8} {:>5} {:>14} {:>12} {:>8}\n", "steps", "round", "host us/layer",
                                 "step us", "layers");
  double best[2] = {0, 0};
  for (int round = 0; round < kRounds; ++round) {
    for (int kind = 0; kind < 2; ++kind) {
      const char* execution = kind == 0 ? "eager" : "graph";
      TANDEM_ASSIGN(const Sample sample, measure(settings, execution, config.vocab_size));
      keep_quiet(settings);
      rows.push_back({{"execution", execution},
                      {"round", round},
                      {"host_us_per_layer", sample.host_us_per_layer},
                      {"step_us", sample.step_us},
                      {"layers", sample.layers},
                      {"misses", sample.misses}});
      text += fmt::format("{:<8} {:>5} {:>14.2f} {:>12.1f} {:>8}\n", execution, round,
                          sample.host_us_per_layer, sample.step_us, sample.layers);
      best[kind] = round == 0 ? sample.host_us_per_layer : std::min(best[kind], sample.host_us_per_layer);
    }
  }
  if (settings.json) {
    const nlohmann::ordered_json document = {
        {"model", settings.model},
        {"ffn_ranks", settings.up.ffn},
        {"transport", settings.up.ffn == 0 ? "local" : settings.up.transport},
        {"sequences", kSequences},
        {"best_us_per_layer", {{"eager", best[0]}, {"replay", best[1]}}},
        {"runs", rows}};
    std::printf("%s\n", document.dump().c_str());
  } else {
    std::printf("%sbest: %.2f us a layer eager, %.2f us in replay, %u sequences\n", text.c_str(), best[0],
                best[1], kSequences);
  }
  return kExitSuccess;
}

}  // namespace tandem
