// The commands that look at models and machines without serving: inspect, doctor, bench, eval parity,
// configuration.
#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "bench/roof_bench.h"
#include "bench/transport_bench.h"
#include "cli/command.h"
#include "cli/commands.h"
#include "cli/compute.h"
#include "cli/doctor.h"
#include "cli/ffn_host.h"
#include "cli/model_folder.h"
#include "cli/plugin_config.h"
#include "cli/support.h"
#include "model/inspect.h"
#include "model/parity.h"

namespace tandem {
namespace {

Result<int> print(const Result<std::string>& text) {
  if (!text) return std::unexpected(text.error());
  std::fputs(text->c_str(), stdout);
  if (!text->ends_with('\n')) std::fputc('\n', stdout);
  return kExitSuccess;
}

const char* level_name(FindingLevel level) {
  return level == FindingLevel::good ? "ok" : level == FindingLevel::notice ? "note" : "problem";
}

}  // namespace

Result<int> run_bench_roofs(Settings& settings) {
  RoofBenchOptions options;
  options.threads = static_cast<int>(settings.engine.threads);
  options.runs = static_cast<int>(settings.measure.runs);
  options.all_tables = settings.measure.all;
  return print(run_roof_bench(options, settings.json));
}

Result<int> run_bench_transport(Settings& settings) {
  TransportBenchOptions options;
  options.transport = settings.measure.transport;
  options.security = settings.measure.security;
  options.progress = [](std::string_view line) {
    std::fprintf(stderr, "%.*s\n", static_cast<int>(line.size()), line.data());
  };
  return print(run_transport_bench(options, settings.json));
}

Result<int> run_inspect(Settings& settings) {
  TANDEM_ASSIGN(const ModelConfig config, read_model_config(settings.model));
  TANDEM_TRY(check_model_options(config, model_options(settings)));
  InspectReport report = inspect_model(config, kv_cache_dtype(settings));
  const int64_t ranks = settings.afd.num_ffn_ranks;
  for (int64_t rank = 0; ranks > 1 && rank < ranks; ++rank) {
    TANDEM_ASSIGN(const ExpertShare share, held_experts(config, settings, rank, ranks));
    add_ffn_rank(report, share);
  }
  return print(settings.json ? inspect_json(report) : inspect_text(report));
}

Result<int> run_eval_parity(Settings& settings) {
  TANDEM_ASSIGN(const std::unique_ptr<Compute> compute, Compute::create(settings, threads_for(settings, 1)));
  const Placement placement = Placement::from(settings);
  ParityOptions options;
  options.compute_dtype = placement.compute_dtype;
  options.sum_mode = placement.sum_mode;
  options.model = model_options(settings);
  options.activation_format = placement.activation_format;
  if (options.compute_dtype == DType::bf16) {
    options.require_equal_routing = false;
    options.max_logit_difference = 0.1;  // eight bits of mantissa on logits of some units, over a few layers
  }
  TANDEM_ASSIGN(const ParityReport report, run_parity(settings.model, options, compute->runner()));
  TANDEM_TRY(print(settings.json ? report.json() : report.text()));
  return report.passed() ? kExitSuccess : kExitFailure;
}

Result<int> run_doctor(Settings& settings) {
  const std::vector<Finding> findings =
      examine_machine(settings.serving.host, static_cast<int>(settings.serving.port));
  bool any_problem = false;
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  std::string text;
  for (const Finding& finding : findings) {
    any_problem = any_problem || finding.level == FindingLevel::problem;
    json.push_back({{"subject", finding.subject},
                    {"level", level_name(finding.level)},
                    {"found", finding.found},
                    {"advice", finding.advice}});
    text += fmt::format("{:<8} {:<11} {}\n", level_name(finding.level), finding.subject, finding.found);
    if (!finding.advice.empty()) text += fmt::format("{:<20} -> {}\n", "", finding.advice);
  }
  TANDEM_TRY(print(settings.json ? json.dump() : text));
  return any_problem ? kExitFailure : kExitSuccess;
}

Result<int> run_configuration(Settings& settings) {
  if (settings.configuration.plugin) return print(plugin_connector_table() + "\n" + plugin_key_table());
  return print(settings.configuration.matrix ? support_matrix() : configuration_reference());
}

}  // namespace tandem
