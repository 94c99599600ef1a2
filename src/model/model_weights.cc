#include "model/model_weights.h"

#include <fmt/core.h>

#include <iterator>

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

// What quantising lost, of all tensors together; each of them in the debug log.
void log_quantized(const std::string& path, const std::vector<QuantizedTensor>& tensors) {
  if (tensors.empty()) return;
  QuantizationError all;
  std::string formats;
  const QuantizedTensor* worst = &tensors.front();
  for (const QuantizedTensor& each : tensors) {
    all.add(each.error);
    const std::string_view name = pack_format_name(each.format);
    if (formats.find(name) == std::string::npos)
      formats += (formats.empty() ? "" : " and ") + std::string(name);
    if (each.error.relative_rms() > worst->error.relative_rms()) worst = &each;
    log_debug(fmt::format("quantised to {}: relative RMS error {:.5f}, largest {:.3g}: {}",
                          pack_format_name(each.format), each.error.relative_rms(), each.error.largest,
                          each.tensor));
  }
  log_info(fmt::format(
      "weights of {}: {} tensors quantised to {} while loading: relative RMS error {:.5f}, largest "
      "difference {:.3g}; the worst tensor has {:.5f}: {}",
      path, tensors.size(), formats, all.relative_rms(), all.largest, worst->error.relative_rms(),
      worst->tensor));
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

namespace {
// In the order of the enumeration.
constexpr std::string_view kStorageNames[] = {"auto", "dequantized", "int8", "fp8", "mxfp8", "mxfp4"};
}  // namespace

std::string_view weight_storage_name(WeightStorage storage) {
  return kStorageNames[static_cast<size_t>(storage)];
}

std::optional<WeightStorage> weight_storage_from_name(std::string_view name) {
  for (size_t i = 0; i < std::size(kStorageNames); ++i) {
    if (kStorageNames[i] == name) return static_cast<WeightStorage>(i);
  }
  return std::nullopt;
}

std::optional<PackFormat> quantized_format(WeightStorage storage) {
  switch (storage) {
    case WeightStorage::int8:
      return PackFormat::int8;
    case WeightStorage::fp8:
      return PackFormat::fp8_block;
    case WeightStorage::mxfp8:
      return PackFormat::mxfp8;
    case WeightStorage::mxfp4:
      return PackFormat::mxfp4;
    default:
      return std::nullopt;
  }
}

PackFormat quantized_head_format(PackFormat format) {
  return format == PackFormat::mxfp4 ? PackFormat::mxfp8 : format;
}

Result<ModelWeights> load_model_weights(const std::string& path, const ModelConfig& config,
                                        const KernelTable& table, ThreadPool& pool,
                                        const LoadOptions& options) {
  if (options.compute_dtype != DType::f32 && options.compute_dtype != DType::bf16) {
    return make_error(ErrorCode::unsupported,
                      fmt::format("compute dtype {} is not implemented; f32 or bf16 would do",
                                  dtype_name(options.compute_dtype)));
  }
  if (const auto format = quantized_format(options.storage); format && options.compute_dtype != DType::bf16) {
    return make_error(ErrorCode::unsupported,
                      fmt::format("{} weights with compute dtype {}: bf16 would do",
                                  pack_format_name(*format), dtype_name(options.compute_dtype)));
  }
  if (config.quantization.experts == ExpertFormat::nvfp4) {
    return make_error(ErrorCode::unsupported,
                      fmt::format("{}: its experts are NVFP4 (moe_quant_algo), which is not implemented; the "
                                  "release that it was made from, with FP4 or FP8 experts, would do",
                                  path));
  }
  std::optional<WeightsCache> cache;
  if (!options.cache_folder.empty()) {
    TANDEM_ASSIGN(cache, WeightsCache::create(options.cache_folder, path));
  }
  TANDEM_ASSIGN(const Checkpoint checkpoint, Checkpoint::open(path));
  ModelWeights weights;
  weights.compute_dtype = options.compute_dtype;
  const LoadPlan plan = make_load_plan(config, weights);
  TANDEM_ASSIGN(const ResolvedTensors tensors, resolve_tensors(plan, checkpoint, config, options.held));

  LoadRun run(plan, tensors, table, options.held, options.compute_dtype, options.storage);
  TANDEM_TRY(run.check_storage(config));
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
                             : "absorbed projections, blocks other than of 128 columns or of 32 with F8_E8M0 "
                               "scales, or formats that do not match inside one matrix"));
  }
  if (cache) cache->choose_file(run);
  std::optional<WeightBinder> binder;
  if (options.nodes != nullptr && options.nodes->plan.owners() > 1)
    binder.emplace(*options.nodes, run.owned_weights());
  run.set_binder(binder ? &*binder : nullptr);
  if (!cache || !cache->restore(run, weights, pool, binder ? &*binder : nullptr)) {
    if (binder) run.set_binder(&binder.emplace(*options.nodes, run.owned_weights()));
    LoadProgress progress(run.work_bytes(), options.show_progress);
    TANDEM_TRY(run.load(weights, pool, progress));
    log_quantized(path, weights.quantized);
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
