#include "model/load_plan_check.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <unordered_set>

#include "base/log.h"
#include "checkpoint/strict_json.h"

namespace tandem {
namespace {

constexpr std::string_view kLayerPrefix = "model.layers.";

// The layer of "model.layers.<n>.…".
std::optional<uint32_t> layer_of(std::string_view tensor) {
  if (!tensor.starts_with(kLayerPrefix)) return std::nullopt;
  const char* begin = tensor.data() + kLayerPrefix.size();
  const char* end = tensor.data() + tensor.size();
  uint32_t layer = 0;
  const auto [stop, code] = std::from_chars(begin, end, layer);
  return code == std::errc() && stop != end && *stop == '.' ? std::optional(layer) : std::nullopt;
}

// Why a tensor is in the checkpoint and not in the plan, as far as the configuration tells.
std::string why_unknown(const std::string& tensor, const ModelConfig& config) {
  const std::optional<uint32_t> layer = layer_of(tensor);
  if (!layer) return fmt::format("{} has no such tensor", config.model_type);
  if (*layer >= config.num_layers) return fmt::format("config.json says {} layers", config.num_layers);
  return fmt::format("config.json makes layer {} a {} layer of {}, which has no such tensor", *layer,
                     config.is_moe(*layer) ? "MoE" : "dense", config.model_type);
}

// The scales beside a claimed tensor, or null. data_loss: two of them.
Result<const StoredTensor*> find_scale(const LoadPlan& plan, const Checkpoint& checkpoint,
                                       const TensorClaim& claim) {
  constexpr std::string_view kWeight = ".weight";
  if (!claim.tensor.ends_with(kWeight)) return nullptr;
  const std::string module = claim.tensor.substr(0, claim.tensor.size() - kWeight.size());
  const StoredTensor* found = nullptr;
  for (const std::string& name : {claim.tensor + "_scale_inv", module + ".scale"}) {
    if (plan.find(name) != nullptr) continue;  // a tensor of its own
    const StoredTensor* scale = checkpoint.find(name);
    if (scale == nullptr) continue;
    if (found != nullptr) {
      return make_error(ErrorCode::data_loss,
                        fmt::format("{}: tensor '{}' has two tensors of scales beside it, '{}' and '{}'",
                                    scale->file->path(), claim.tensor, found->info->name, name));
    }
    found = scale;
  }
  return found;
}

bool has_shape(const TensorInfo& info, const TensorClaim& claim) {
  if (!is_fp4_pairs(info.dtype) || claim.shape.size() != 2)
    return std::ranges::equal(info.shape, claim.shape);
  return info.shape.size() == 2 && info.shape[0] == claim.shape[0] && info.shape[1] * 2 == claim.shape[1];
}

}  // namespace

bool is_ignorable(const std::string& tensor, const ModelConfig& config) {
  if (tensor.ends_with(".rotary_emb.inv_freq")) return true;
  if (config.tie_word_embeddings && tensor == "lm_head.weight") return true;
  const std::optional<uint32_t> layer = layer_of(tensor);
  return layer && *layer >= config.num_layers && *layer - config.num_layers < config.num_mtp_layers;
}

Result<ResolvedTensors> resolve_tensors(const LoadPlan& plan, const Checkpoint& checkpoint,
                                        const ModelConfig& config, const HeldParts& held) {
  ResolvedTensors resolved;
  resolved.readers.resize(plan.claims().size());
  std::unordered_set<std::string_view> scales;  // that belong to a claimed tensor
  for (size_t i = 0; i < plan.claims().size(); ++i) {
    const TensorClaim& claim = plan.claims()[i];
    const StoredTensor* stored = checkpoint.find(claim.tensor);
    if (stored == nullptr) {
      return make_error(
          ErrorCode::not_found,
          fmt::format("{}: tensor '{}' {} is missing; config.json ({}) calls for it", checkpoint.folder(),
                      claim.tensor, shape_text(claim.shape), config.model_type));
    }
    if (!has_shape(*stored->info, claim)) {
      return make_error(
          ErrorCode::data_loss,
          fmt::format("{}: tensor '{}' has the shape {}; config.json calls for {}{}", stored->file->path(),
                      claim.tensor, shape_text(stored->info->shape), shape_text(claim.shape),
                      is_fp4_pairs(stored->info->dtype) ? ", as I8 half as many columns" : ""));
    }
    TANDEM_ASSIGN(const StoredTensor* const scale, find_scale(plan, checkpoint, claim));
    if (scale != nullptr) scales.insert(scale->info->name);
    if (!is_held(claim, held)) continue;
    TANDEM_ASSIGN(resolved.readers[i], MatrixReader::create(*stored, scale, config.quantization.block_rows,
                                                            config.quantization.block_cols));
    resolved.stored_bytes += stored->info->bytes() + (scale != nullptr ? scale->info->bytes() : 0);
  }
  size_t ignored = 0;
  for (const StoredTensor& stored : checkpoint.tensors()) {
    const std::string& name = stored.info->name;
    if (plan.find(name) != nullptr || scales.contains(name)) continue;
    if (is_ignorable(name, config)) {
      ++ignored;
      continue;
    }
    return make_error(ErrorCode::data_loss,
                      fmt::format("{}: tensor '{}' belongs to nothing: {}", stored.file->path(),
                                  printable(name), why_unknown(printable(name), config)));
  }
  if (ignored != 0) {
    log_info(fmt::format(
        "{}: ignored {} tensors that are not needed (RoPE tables, multi-token prediction, tied head)",
        checkpoint.folder(), ignored));
  }
  return resolved;
}

}  // namespace tandem
