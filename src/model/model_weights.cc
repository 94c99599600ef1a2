#include "model/model_weights.h"

#include <fmt/core.h>

#include "base/huge_pages.h"
#include "base/log.h"
#include "base/memory_budget.h"
#include "checkpoint/checkpoint.h"
#include "model/load_plan.h"
#include "model/load_plan_check.h"
#include "model/load_plan_run.h"
#include "model/weights_cache.h"

namespace tandem {
namespace {

std::string parts_text(const LoadRun& run) {
  std::string text;
  for (size_t i = 0; i < kWeightRoles; ++i) {
    const auto role = static_cast<WeightRole>(i);
    if (run.role_bytes(role) == 0) continue;
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", weight_role_name(role),
                        bytes_text(run.role_bytes(role)));
  }
  return text;
}

// "fp8_block 1.2 GiB, bf16 300 MiB": of the packed weights.
std::string formats_text(const LoadRun& run) {
  std::string text;
  for (size_t i = 0; i < kPackFormats; ++i) {
    const auto format = static_cast<PackFormat>(i);
    if (run.format_bytes(format) == 0) continue;
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", pack_format_name(format),
                        bytes_text(run.format_bytes(format)));
  }
  return text;
}

// What the kernel really gave.
void log_huge_pages(const std::string& path, const ModelWeights& weights) {
  std::vector<MemoryRange> ranges;
  for (const OwnedBuffer& buffer : weights.storage) ranges.push_back({buffer.data(), buffer.size()});
  if (weights.cache) ranges.push_back({weights.cache->in_place().data(), weights.cache->in_place().size()});
  const std::optional<HugePageUse> use = huge_page_use(ranges);
  if (!use || use->resident < kHugePageBytes) return;
  const std::string text = "weights of " + path + ": " + use->text() + " in huge pages";
  if (huge_pages() == HugePages::on && use->huge < use->resident / 2) {
    log_warning(text + " (" + huge_pages_offered() + ")");
  } else if (weights.cache && huge_pages() == HugePages::automatic && use->huge < use->resident / 2) {
    log_info(text + "; engine.huge_pages: on would copy the cache into such");
  } else {
    log_info(text);
  }
}

// A slice knows where it lies in its expert.
void place_slices(const ModelConfig& config, const HeldParts& held, ModelWeights& weights) {
  for (LayerWeights& layer : weights.layers) {
    for (MlpWeights& expert : layer.moe.experts) {
      if (!expert.empty()) expert.row_begin = held.share.rows.within(config.moe_intermediate_size).begin;
    }
  }
}

// The plan packs the first of the streams' projections.
void share_hidden_projection(DraftWeights& draft) {
  for (PackedWeight& weight : draft.hidden_projection) weight = draft.hidden_projection.front();
}

// What the plan sized for a rank that holds everything, and this one does not.
void clear_parts_held_elsewhere(const HeldParts& held, ModelWeights& weights) {
  for (LayerWeights& layer : weights.layers) {
    if (!held.attention) layer.attention = {};
  }
}

}  // namespace

Result<ModelWeights> load_model_weights(const std::string& path, const ModelConfig& config,
                                        const KernelTable& table, ThreadPool& pool,
                                        const LoadOptions& options) {
  if (options.compute_dtype != DType::f32 && options.compute_dtype != DType::bf16) {
    return make_error(ErrorCode::unsupported,
                      fmt::format("compute dtype {} is not implemented; f32 or bf16 would do",
                                  dtype_name(options.compute_dtype)));
  }
  if (config.quantization.experts == ExpertFormat::nvfp4) {
    return make_error(ErrorCode::unsupported,
                      fmt::format("{}: its experts are NVFP4 (moe_quant_algo), which is not implemented; the "
                                  "release that it was made from, with FP4 or FP8 experts, would do",
                                  path));
  }
  TANDEM_ASSIGN(const Checkpoint checkpoint, Checkpoint::open(path));
  ModelWeights weights;
  weights.compute_dtype = options.compute_dtype;
  const LoadPlan plan = make_load_plan(config, weights);
  TANDEM_ASSIGN(const ResolvedTensors tensors, resolve_tensors(plan, checkpoint, config, options.held));

  LoadRun run(plan, tensors, table, options.held, options.compute_dtype, options.storage);
  const uint64_t need = run.resident_bytes() + run.scratch_bytes() * static_cast<uint64_t>(pool.threads());
  MemoryBudget have = MemoryBudget::detect();
  have.configured = options.memory_limit.value_or(MemoryBudget::kUnlimited);
  log_info(fmt::format("weights of {}: need {} as {} ({}), have {}", path, bytes_text(need),
                       dtype_name(options.compute_dtype), parts_text(run), have.text()));
  if (need > have.available()) {
    return make_error(ErrorCode::resource_exhausted,
                      fmt::format("the weights of {} need {} on this rank and {} are available; more FFN "
                                  "ranks or a machine with more "
                                  "memory would do",
                                  path, bytes_text(need), have.text()));
  }
  log_info(fmt::format("weights of {}: packed as {}", path, formats_text(run)));
  if (run.dequantized() != 0) {
    log_info(fmt::format("weights of {}: {} tensors with block scales become {} ({})", path,
                         run.dequantized(), dtype_name(options.compute_dtype),
                         options.compute_dtype == DType::f32 ? "the float32 reference mode"
                         : options.storage == WeightStorage::dequantized
                             ? "as asked"
                             : "absorbed projections, blocks that are not 128 columns wide, or formats that "
                               "do not match inside one matrix"));
  }
  std::optional<WeightsCache> cache;
  if (!options.cache_folder.empty()) {
    TANDEM_ASSIGN(cache, WeightsCache::create(options.cache_folder, path, checkpoint, run));
  }
  std::optional<WeightBinder> binder;
  if (options.nodes != nullptr && options.nodes->plan.owners() > 1)
    binder.emplace(*options.nodes, run.owned_weights());
  run.set_binder(binder ? &*binder : nullptr);
  if (!cache || !cache->restore(run, weights, pool, binder ? &*binder : nullptr)) {
    if (binder) run.set_binder(&binder.emplace(*options.nodes, run.owned_weights()));
    LoadProgress progress(run.work_bytes(), options.show_progress);
    TANDEM_TRY(run.load(weights, pool, progress));
    if (cache) cache->save(run, pool);
  }
  if (binder) weights.owners = binder->finish();
  log_huge_pages(path, weights);
  place_slices(config, options.held, weights);
  share_hidden_projection(weights.draft);
  clear_parts_held_elsewhere(options.held, weights);
  return weights;
}

}  // namespace tandem
