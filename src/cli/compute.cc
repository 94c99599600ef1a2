#include "cli/compute.h"

#include <algorithm>

#include "base/cpu_budget.h"
#include "base/huge_pages.h"
#include "base/log.h"
#include "model/weight_report.h"

namespace tandem {

Placement Placement::from(const Settings& settings) {
  Placement placement;
  placement.gate_on_attention = settings.afd.compute_gate_on_attention;
  placement.shared_experts_on_attention = settings.shared_experts_on_attention();
  placement.send_token_ids = settings.afd.send_token_ids;
  placement.num_ffn_ranks = static_cast<uint32_t>(std::max<int64_t>(1, settings.ffn_ranks()));
  if (settings.afd.connector != "local") placement.connector = settings.afd.connector;
  placement.balanced_routing = settings.engine.balanced_routing;
  placement.sum_mode = settings.engine.deterministic ? SumMode::deterministic : SumMode::plain;
  placement.compute_dtype = settings.engine.compute_dtype == "bf16" ? DType::bf16 : DType::f32;
  placement.weights = weight_storage_from_name(settings.engine.weights).value_or(WeightStorage::stored);
  placement.reply_dtype = settings.engine.deterministic ? DType::f64 : placement.compute_dtype;
  // auto, bf16 and f32 are names of plain rows: the compute dtype, which `validate` has compared.
  placement.activation_format =
      activation_format_from_name(settings.afd.activation_dtype).value_or(ActivationFormat::plain);
  placement.capture_sizes = settings.capture_sizes().value_or(std::vector<uint32_t>());  // validated
  return placement;
}

ModelOptions model_options(const Settings& settings) {
  ModelOptions options;
  options.qat_simulation = settings.engine.qat_simulation;
  const std::string& dtype = settings.engine.kv_cache_dtype;
  options.cache_dtype = dtype == "auto" ? DType::none : dtype == "bf16" ? DType::bf16 : DType::f8_e4m3;
  return options;
}

DType kv_cache_dtype(const Settings& settings) {
  const DType dtype = model_options(settings).cache_dtype;
  return dtype == DType::none ? Placement::from(settings).compute_dtype : dtype;
}

std::string weights_cache_folder(const Settings& settings) {
  // What quantising loses is measured as it is done: for a report weights are packed anew.
  if (!settings.engine.weights_report.empty()) return {};
  return settings.engine.weights_cache == "off" ? std::string() : settings.engine.weights_cache;
}

int threads_for(const Settings& settings, int roles) {
  if (settings.engine.threads > 0) return static_cast<int>(settings.engine.threads);
  return std::max(1, CpuBudget::detect().threads / std::max(1, roles));
}

bool io_may_spin(int threads, int roles, int io_threads) {
  return threads + io_threads <= CpuBudget::detect().threads / std::max(1, roles);
}

namespace {

// One owner when there is one node, when its owner wants none of it, and when hwloc cannot tell.
WeightNodes find_nodes(const Settings& settings, int threads) {
  WeightNodes nodes;
  nodes.plan = plan_owners({}, threads);
  if (settings.engine.numa == "off") return nodes;
  Result<NumaTopology> topology = NumaTopology::detect();
  if (!topology) {
    log_warning(topology.error().message + "; one node is assumed");
    return nodes;
  }
  if (topology->cpus().size() < 2) return nodes;
  nodes.plan = plan_owners(topology->cpus(), threads);
  nodes.topology = std::make_shared<NumaTopology>(std::move(*topology));
  std::string text;
  for (uint32_t owner = 0; owner < nodes.plan.owners(); ++owner) {
    const uint32_t node = nodes.plan.node_of_owner[owner];
    text += (owner == 0 ? "" : ", ") + std::to_string(nodes.plan.threads[owner]) + " on node " +
            std::to_string(node) + " with " + std::to_string(nodes.topology->cpus()[node]) + " CPUs";
  }
  log_info("NUMA: threads: " + text);
  return nodes;
}

ThreadPlacement placement_of(const WeightNodes& nodes) {
  ThreadPlacement placement;
  if (nodes.plan.owners() < 2) return placement;
  placement.owner_of_worker = nodes.plan.owner_of_worker;
  if (!nodes.topology->can_bind()) return placement;
  placement.bind = [topology = nodes.topology, plan = nodes.plan](int worker) {
    const uint32_t owner = plan.owner_of_worker[static_cast<size_t>(worker)];
    if (const Status bound = topology->bind_thread(plan.node_of_owner[owner]); !bound)
      log_warning(bound.error().message + "; it runs where the kernel puts it");
  };
  return placement;
}

}  // namespace

Status use_huge_pages(const Settings& settings) {
  const std::string& mode = settings.engine.huge_pages;
  return set_huge_pages(mode == "on" ? HugePages::on : mode == "off" ? HugePages::off : HugePages::automatic);
}

Result<std::unique_ptr<Compute>> Compute::create(const Settings& settings, int threads) {
  TANDEM_ASSIGN(const KernelTable* table, choose_kernel_table());
  TANDEM_TRY(use_huge_pages(settings));
  WeightNodes nodes = find_nodes(settings, threads);
  ThreadPlacement placement = placement_of(nodes);
  std::unique_ptr<Compute> compute(new Compute(threads, std::move(nodes), std::move(placement)));
  TANDEM_ASSIGN(KernelRunner runner, KernelRunner::create(*table, compute->pool_));
  compute->runner_ = std::make_unique<KernelRunner>(std::move(runner));
  return compute;
}

Status report_weights(const Settings& settings, const Placement& placement, const ModelWeights& weights,
                      const std::string& rank) {
  if (settings.engine.weights_report.empty()) return {};
  return write_weight_report(settings.engine.weights_report + rank, settings.model, placement.weights,
                             weights);
}

Result<std::unique_ptr<MoeBlock>> make_moe_block(const ModelConfig& config, const ModelWeights& weights,
                                                 const Placement& placement, bool on_attention,
                                                 KernelRunner& runner, size_t scratch_bytes) {
  MoeBlockOptions options;
  if (scratch_bytes != 0) options.scratch_bytes = scratch_bytes;
  options.routes = on_attention == placement.gate_on_attention;
  options.runs_shared_experts = on_attention == placement.shared_experts_on_attention;
  options.balanced_routing = placement.balanced_routing;
  if (options.balanced_routing && options.routes) {
    log_warning(
        "engine.balanced_routing: every row takes experts in turn instead of the ones its gate chooses; this "
        "is "
        "for benchmarks, and the answers mean nothing");
  }
  options.sum_mode = placement.sum_mode;
  options.compute_dtype = placement.compute_dtype;
  options.reply_dtype = placement.reply_dtype;
  if (!on_attention) options.activation_format = placement.activation_format;
  const std::vector<const MoeLayerWeights*> layers = moe_layers(config, weights);
  return MoeBlock::create(moe_shape(config), layers, options, runner);
}

Result<SplitSettings> split_settings(const std::string& model_path, const ModelConfig& config,
                                     const Placement& placement, const KernelTable& table) {
  TANDEM_ASSIGN(const uint64_t fingerprint, model_fingerprint(model_path));
  SplitSettings settings = SplitSettings::from_model(config, fingerprint);
  settings.gate_on_attention = placement.gate_on_attention;
  settings.shared_experts_on_attention = placement.shared_experts_on_attention;
  settings.balanced_routing = placement.balanced_routing;
  // Where experts follow from token ids, the rank that routes cannot do without.
  settings.token_ids =
      placement.send_token_ids || (config.num_hash_layers != 0 && !placement.gate_on_attention);
  settings.num_ffn_ranks = placement.num_ffn_ranks;
  settings.connector = placement.connector;
  settings.set_dtypes(placement.compute_dtype, placement.sum_mode, placement.activation_format);
  // float32 has one way to hold them.
  const bool plain = placement.compute_dtype == DType::f32 || placement.weights == WeightStorage::dequantized;
  settings.weights = plain ? "dequantized"
                     : placement.weights == WeightStorage::stored
                         ? "as stored"
                         : std::string(weight_storage_name(placement.weights));
  settings.numerics_id = table.numerics_id;
  settings.graph = !placement.capture_sizes.empty();
  settings.capture_sizes = placement.capture_sizes;
  TANDEM_TRY(settings.validate());
  return settings;
}

}  // namespace tandem
