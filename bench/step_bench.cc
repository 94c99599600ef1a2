#include "bench/step_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/cpu_budget.h"
#include "base/memory_budget.h"
#include "base/region_time.h"
#include "bench/roofs.h"
#include "bench/shape_config.h"
#include "bench/step_model.h"
#include "bench/step_profile.h"

namespace tandem {
namespace {

using namespace bench;

// About how long a roof is read before each run.
constexpr double kRoofSeconds = 0.06;
// Rows of one prefill step at most, and sequences of a decode step: what `serving` allows at most.
constexpr uint32_t kMostPrefillRows = 65536, kMostSequences = 4096;
constexpr uint32_t kMostContext = 1u << 20;

struct CaseResult {
  uint32_t batch = 0, context = 0;
  double seconds = 0;  // median of the runs' means
  StepCost cost;       // mean over the steps of all runs
  double experts_read_per_layer = 0;
  double read_roof = 0, flop_roof = 0;    // medians
  double read_share = 0, flop_share = 0;  // medians of ratios
  double roof_share = 0;                  // the same, of the parts' least time
  bool memory_bound = false;
  std::vector<ProfileLine> profile;
};

struct Bench {
  const StepBenchOptions& options;
  const RoofLoops& loops;
  KernelRunner& runner;
  const ReadMemory& memory;
  ModelConfig config;
  const RandomModel& model;
  uint32_t moe_layers = 0;
};

void add(StepCost& sum, const StepCost& cost) {
  sum.attention += cost.attention;
  sum.dense += cost.dense;
  sum.router += cost.router;
  sum.shared_experts += cost.shared_experts;
  sum.experts += cost.experts;
  sum.head += cost.head;
  sum.embedding += cost.embedding;
  sum.kv += cost.kv;
  sum.flops += cost.flops;
  sum.kv_flops += cost.kv_flops;
  for (size_t i = 0; i < sum.weight_flops.size(); ++i) sum.weight_flops[i] += cost.weight_flops[i];
}

// Divided, so that the mean of equal whole numbers is that number.
StepCost mean_of(StepCost cost, double steps) {
  for (double* part : {&cost.attention, &cost.dense, &cost.router, &cost.shared_experts, &cost.experts,
                       &cost.head, &cost.embedding, &cost.kv, &cost.flops, &cost.kv_flops})
    *part /= steps;
  for (double& part : cost.weight_flops) part /= steps;
  return cost;
}

StepPlan plan_of(StepKind kind, uint32_t batch, uint32_t context) {
  StepPlan plan;
  plan.all_logits = kind == StepKind::decode;
  if (kind == StepKind::decode) {
    plan.sequences.assign(batch, {context - 1, 1});
  } else {
    plan.sequences.push_back({context, batch});
  }
  return plan;
}

Status profile_steps(const Bench& bench, StepModel& model, CaseResult& result) {
  TimeProfile profile;
  bench.runner.set_profile(&profile);
  const Instant start = now();
  const Duration joined = join_time_of_this_thread();
  Status status;
  int steps = 0;
  for (; steps < bench.options.runs && status; ++steps) {
    const Result<StepCost> cost = model.run();
    if (!cost) status = std::unexpected(cost.error());
  }
  const double seconds = seconds_since(start);
  const double waited = std::chrono::duration<double>(join_time_of_this_thread() - joined).count();
  bench.runner.set_profile(nullptr);
  TANDEM_TRY(status);
  result.profile = profile_lines(profile, steps, seconds, waited);
  return {};
}

Result<CaseResult> measure(const Bench& bench, uint32_t batch, uint32_t context) {
  const StepBenchOptions& options = bench.options;
  TANDEM_ASSIGN(const std::unique_ptr<StepModel> model,
                StepModel::create(bench.config, bench.model, bench.runner,
                                  plan_of(options.kind, batch, context), options.seed, options.model));
  TANDEM_TRY(model->run());  // touches everything once
  CaseResult result;
  result.batch = batch;
  result.context = context;
  StepCost total;
  double experts = 0, all_steps = 0;
  std::vector<double> times, reads, peaks, read_shares, flop_shares, roof_shares;
  ThreadPool& pool = bench.runner.pool();
  for (int run = 0; run < options.runs; ++run) {
    reads.push_back(measure_read(bench.loops, pool, bench.memory.data(), bench.memory.size(), kRoofSeconds));
    peaks.push_back(measure_dot_bf16(bench.loops, pool, kRoofSeconds));
    StepCost sum;
    int steps = 0;
    double seconds = 0;
    const Instant start = now();
    do {
      TANDEM_ASSIGN(const StepCost cost, model->run());
      add(sum, cost);
      experts += static_cast<double>(model->experts_read());
      ++steps;
      seconds = seconds_since(start);
    } while (seconds < options.seconds);
    times.push_back(seconds / steps);
    read_shares.push_back(sum.bytes() / seconds / reads.back());
    flop_shares.push_back(sum.flops / seconds / peaks.back());
    roof_shares.push_back(sum.least_seconds(reads.back(), peaks.back()) / seconds);
    add(total, sum);
    all_steps += steps;
  }
  result.seconds = median(times);
  result.cost = mean_of(total, all_steps);
  result.experts_read_per_layer = bench.moe_layers == 0 ? 0 : experts / all_steps / bench.moe_layers;
  result.read_roof = median(reads);
  result.flop_roof = median(peaks);
  result.read_share = median(read_shares);
  result.flop_share = median(flop_shares);
  result.roof_share = median(roof_shares);
  result.memory_bound = result.cost.bytes() / result.read_roof > result.cost.flops / result.flop_roof;
  if (options.profile) TANDEM_TRY(profile_steps(bench, *model, result));
  return result;
}

DType kv_dtype(const StepBenchOptions& options) {
  return options.model.cache_dtype == DType::none ? DType::bf16 : options.model.cache_dtype;
}

const char* command_name(StepKind kind) {
  return kind == StepKind::decode ? "decode" : "prefill";
}

// Tokens that a step brings forward: rows, in both kinds.
double tokens_per_second(const CaseResult& result) {
  return result.batch / result.seconds;
}

std::string as_text(const Bench& bench, const std::vector<CaseResult>& results) {
  const StepBenchOptions& options = bench.options;
  std::string text = fmt::format(
      "{}: {}, {} of {} layers, weights {}, experts {} ({} in memory), KV cache {}; {}, {} threads; medians "
      "of {} runs, "
      "roofs read beside each\n\n",
      command_name(options.kind), options.shape->name, bench.config.num_layers, options.shape->layers,
      pack_format_name(options.weights), pack_format_name(options.experts),
      bytes_text(bench.model.weights.resident_bytes), dtype_name(kv_dtype(options)),
      bench.runner.table().name, bench.runner.pool().threads(), options.runs);
  text += fmt::format("{:>6} {:>8} {:>10} {:>9} {:>9} {:>8} {:>8} {:>6} {:>9} {:>8} {:>6} {:>6}  {}\n",
                      options.kind == StepKind::decode ? "batch" : "rows", "context", "ms/step", "tokens/s",
                      "GB/step", "GB/s", "of read", "share", "GFLOP/s", "of bf16", "share", "both", "bound");
  for (const CaseResult& result : results) {
    text += fmt::format(
        "{:>6} {:>8} {:>10.2f} {:>9.1f} {:>9.3f} {:>8.1f} {:>8.1f} {:>5.0f}% {:>9.1f} {:>8.1f} {:>5.0f}% "
        "{:>5.0f}%  {}\n",
        result.batch, result.context, result.seconds * 1e3, tokens_per_second(result),
        result.cost.bytes() / 1e9, result.cost.bytes() / result.seconds / 1e9, result.read_roof / 1e9,
        result.read_share * 100, result.cost.flops / result.seconds / 1e9, result.flop_roof / 1e9,
        result.flop_share * 100, result.roof_share * 100, result.memory_bound ? "read" : "bf16 dot");
  }
  text += fmt::format(
      "\nbytes a step, in MB\n{:>6} {:>8} {:>10} {:>8} {:>8} {:>10} {:>8} {:>8} {:>10} {:>8}  {}\n",
      options.kind == StepKind::decode ? "batch" : "rows", "context", "attention", "dense", "router",
      "experts", "shared", "head", "embedding", "kv", "experts a layer");
  for (const CaseResult& result : results) {
    const StepCost& cost = result.cost;
    text += fmt::format(
        "{:>6} {:>8} {:>10.1f} {:>8.1f} {:>8.1f} {:>10.1f} {:>8.1f} {:>8.1f} {:>10.2f} {:>8.1f}  {:.1f} of "
        "{}\n",
        result.batch, result.context, cost.attention / 1e6, cost.dense / 1e6, cost.router / 1e6,
        cost.experts / 1e6, cost.shared_experts / 1e6, cost.head / 1e6, cost.embedding / 1e6, cost.kv / 1e6,
        result.experts_read_per_layer, options.shape->experts);
  }
  for (const CaseResult& result : results) {
    if (result.profile.empty()) continue;
    text += fmt::format("\nprofile, {} {} at context {}\n{:<22} {:>10} {:>8} {:>8}\n",
                        options.kind == StepKind::decode ? "batch" : "rows", result.batch, result.context,
                        "operation", "ms/step", "of step", "calls");
    for (const ProfileLine& line : result.profile)
      text += fmt::format("{:<22} {:>10.3f} {:>7.1f}% {:>8.0f}\n", line.operation, line.seconds * 1e3,
                          line.share * 100, line.calls);
  }
  return text;
}

std::string as_json(const Bench& bench, const std::vector<CaseResult>& results) {
  using Json = nlohmann::ordered_json;
  const StepBenchOptions& options = bench.options;
  Json document = {{"command", command_name(options.kind)},
                   {"shape", options.shape->name},
                   {"layers", bench.config.num_layers},
                   {"of_layers", options.shape->layers},
                   {"weights", pack_format_name(options.weights)},
                   {"expert_weights", pack_format_name(options.experts)},
                   {"kv_dtype", dtype_name(kv_dtype(options))},
                   {"table", bench.runner.table().name},
                   {"threads", bench.runner.pool().threads()},
                   {"runs", options.runs},
                   {"weight_bytes", bench.model.weights.resident_bytes},
                   {"cases", Json::array()}};
  for (const CaseResult& result : results) {
    const StepCost& cost = result.cost;
    Json row = {{"batch", result.batch},
                {"context", result.context},
                {"milliseconds", result.seconds * 1e3},
                {"tokens_per_second", tokens_per_second(result)},
                {"experts_read_per_layer", result.experts_read_per_layer},
                {"bytes",
                 {{"attention", cost.attention},
                  {"dense", cost.dense},
                  {"router", cost.router},
                  {"experts", cost.experts},
                  {"shared_experts", cost.shared_experts},
                  {"head", cost.head},
                  {"embedding", cost.embedding},
                  {"kv", cost.kv},
                  {"total", cost.bytes()}}},
                {"flops", cost.flops},
                {"gigabytes_per_second", cost.bytes() / result.seconds / 1e9},
                {"read_roof", result.read_roof / 1e9},
                {"read_share", result.read_share},
                {"gigaflops", cost.flops / result.seconds / 1e9},
                {"flop_roof_kind", "bf16 dot"},
                {"flop_roof", result.flop_roof / 1e9},
                {"flop_share", result.flop_share},
                {"roof_share", result.roof_share},
                {"bound", result.memory_bound ? "read" : "bf16 dot"}};
    if (options.profile) {
      Json lines = Json::array();
      for (const ProfileLine& line : result.profile)
        lines.push_back({{"operation", line.operation},
                         {"milliseconds", line.seconds * 1e3},
                         {"percent", line.share * 100},
                         {"calls", line.calls}});
      row["profile"] = std::move(lines);
    }
    document["cases"].push_back(std::move(row));
  }
  return document.dump() + "\n";
}

Status check(const StepBenchOptions& options) {
  const auto refuse = [](std::string message) {
    return make_error(ErrorCode::invalid_argument, std::move(message));
  };
  if (options.shape == nullptr) return refuse("measure.shape: none is given; --list-shapes prints them");
  if (options.runs < 1 || options.threads < 0 || !(options.seconds > 0)) {
    return refuse(
        fmt::format("step benchmark: runs {}, threads {}, seconds {}: runs must be at least 1, threads "
                    "0 (automatic) or more, seconds above 0",
                    options.runs, options.threads, options.seconds));
  }
  const bool decode = options.kind == StepKind::decode;
  const uint32_t most = decode ? kMostSequences : kMostPrefillRows;
  for (const uint32_t batch : options.batches) {
    if (batch < 1 || batch > most)
      return refuse(fmt::format("measure.batch: {}: a {} step has 1..{} {}", batch,
                                command_name(options.kind), most, decode ? "sequences" : "rows"));
  }
  for (const uint32_t context : options.contexts) {
    if (context < (decode ? 1u : 0u) || context > kMostContext)
      return refuse(
          fmt::format("measure.context: {}: use {}..{} tokens", context, decode ? 1 : 0, kMostContext));
  }
  if (options.batches.empty() || options.contexts.empty())
    return refuse("measure.batch, measure.context: an empty list; one number of each would do");
  return {};
}

}  // namespace

Result<std::string> run_step_bench(const StepBenchOptions& options, bool json) {
  TANDEM_TRY(check(options));
  TANDEM_ASSIGN(ModelConfig config,
                shape_config(*options.shape, options.layers == 0 ? options.shape->layers : options.layers));
  // Before its weights are made: gigabytes of them for the larger shapes.
  TANDEM_TRY(check_model_options(config, options.model));
  TANDEM_ASSIGN(const KernelTable* table, choose_kernel_table());
  const RoofLoops* loops = roof_loops(table->name);
  if (loops == nullptr)
    return make_error(ErrorCode::internal, fmt::format("no roofs for table {}", table->name));
  ThreadPool pool(options.threads == 0 ? CpuBudget::detect().threads : options.threads);
  TANDEM_ASSIGN(KernelRunner runner, KernelRunner::create(*table, pool));
  TANDEM_ASSIGN(
      const std::unique_ptr<RandomModel> model,
      make_random_model(config, *table, pool,
                        {.weights = options.weights, .experts = options.experts, .seed = options.seed}));
  TANDEM_ASSIGN(const ReadMemory memory, ReadMemory::create(options.read_bytes, PageKind::huge));
  const auto moe_layers = static_cast<uint32_t>(std::ranges::count(config.layer_ffn, FfnKind::moe));
  const Bench bench{options, *loops, runner, memory, std::move(config), *model, moe_layers};
  std::vector<CaseResult> results;
  for (const uint32_t context : options.contexts) {
    for (const uint32_t batch : options.batches) {
      TANDEM_ASSIGN(CaseResult result, measure(bench, batch, context));
      results.push_back(std::move(result));
    }
  }
  return json ? as_json(bench, results) : as_text(bench, results);
}

}  // namespace tandem
