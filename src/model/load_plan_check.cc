#include "model/load_plan_check.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <unordered_map>
#include <unordered_set>

#include "base/log.h"
#include "checkpoint/strict_json.h"
#include "checkpoint/table_reader.h"
#include "model/families.h"
#include "model/family_deepseek_v4.h"

namespace tandem {
namespace {

// The number behind `prefix` in "<prefix><n>.…".
std::optional<uint32_t> number_after(std::string_view prefix, std::string_view tensor) {
  if (!tensor.starts_with(prefix)) return std::nullopt;
  const char* begin = tensor.data() + prefix.size();
  const char* end = tensor.data() + tensor.size();
  uint32_t layer = 0;
  const auto [stop, code] = std::from_chars(begin, end, layer);
  return code == std::errc() && stop != end && *stop == '.' ? std::optional(layer) : std::nullopt;
}

// The layer of "model.layers.<n>.…" or "layers.<n>.…".
std::optional<uint32_t> layer_of(std::string_view tensor) {
  constexpr std::string_view kModel = "model.";
  if (tensor.starts_with(kModel)) tensor.remove_prefix(kModel.size());
  return number_after("layers.", tensor);
}

// The stage of "mtp.<n>.…".
std::optional<uint32_t> stage_of(std::string_view tensor) {
  return number_after("mtp.", tensor);
}

// The tensors of a checkpoint under the names of a plan.
class NamedTensors {
 public:
  NamedTensors(const Checkpoint& checkpoint, const ModelConfig& config)
      : checkpoint_(checkpoint), canonical_(family_entry(config.family).canonical_name) {}

  // data_loss: two tensors that are two spellings of one.
  Result<void> index() {
    if (canonical_ == nullptr) return {};
    for (const StoredTensor& stored : checkpoint_.tensors()) {
      const auto [at, inserted] = by_name_.emplace(canonical_(stored.info->name), &stored);
      if (inserted) continue;
      return make_error(
          ErrorCode::data_loss,
          fmt::format("{}: tensors '{}' and '{}' are two spellings of '{}'; keep one", stored.file->path(),
                      printable(at->second->info->name), printable(stored.info->name), printable(at->first)));
    }
    return {};
  }

  const StoredTensor* find(const std::string& name) const {
    if (canonical_ == nullptr) return checkpoint_.find(name);
    const auto at = by_name_.find(name);
    return at == by_name_.end() ? nullptr : at->second;
  }

  // The scales beside a claimed tensor, or null. data_loss: two of them.
  Result<const StoredTensor*> scale_of(const LoadPlan& plan, const TensorClaim& claim) const {
    constexpr std::string_view kWeight = ".weight", kBlocks = "_blocks";
    if (claim.fp4_cols != 0)
      return find(claim.tensor.substr(0, claim.tensor.size() - kBlocks.size()) + "_scales");
    if (!claim.tensor.ends_with(kWeight)) return nullptr;
    const std::string module = claim.tensor.substr(0, claim.tensor.size() - kWeight.size());
    const StoredTensor* found = nullptr;
    for (const std::string& name : {claim.tensor + "_scale_inv", module + ".scale"}) {
      if (plan.find(name) != nullptr) continue;  // a tensor of its own
      const StoredTensor* scale = find(name);
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

  std::string name_of(const StoredTensor& stored) const {
    return canonical_ == nullptr ? stored.info->name : canonical_(stored.info->name);
  }

 private:
  const Checkpoint& checkpoint_;
  std::string (*canonical_)(std::string_view);
  std::unordered_map<std::string, const StoredTensor*> by_name_;
};

// A drafter that config.json describes and whose files are not there would be missed much later.
Result<void> check_drafter(const NamedTensors& tensors, const Checkpoint& checkpoint,
                           const ModelConfig& config) {
  if (config.draft.kind != DraftKind::dspark) return {};
  const std::string first = "mtp.0.", last = fmt::format("mtp.{}.", config.draft.num_stages - 1);
  for (const std::string& name :
       {first + "main_proj.weight", first + "main_norm.weight", last + "norm.weight", last + "hc_head_fn",
        last + "hc_head_base", last + "hc_head_scale", last + "markov_head.markov_w1.weight",
        last + "markov_head.markov_w2.weight", last + "confidence_head.proj.weight"}) {
    if (tensors.find(name) != nullptr) continue;
    return make_error(ErrorCode::not_found,
                      fmt::format("{}: tensor '{}' is missing; the dspark_* keys of config.json call for a "
                                  "drafter of {} stages",
                                  checkpoint.folder(), name, config.draft.num_stages));
  }
  return {};
}

// Why a tensor is in the checkpoint and not in the plan, as far as the configuration tells.
std::string why_unknown(const std::string& tensor, const ModelConfig& config) {
  if (const auto stage = stage_of(tensor); stage && config.draft.num_stages != 0)
    return fmt::format("config.json makes {} draft stages", config.draft.num_stages);
  const std::optional<uint32_t> layer = layer_of(tensor);
  if (!layer) return fmt::format("{} has no such tensor", config.model_type);
  if (*layer >= config.total_layers()) return fmt::format("config.json says {} layers", config.num_layers);
  if (*layer >= config.num_layers)
    return fmt::format("the draft layer of {} has no such tensor", config.model_type);
  return fmt::format("config.json makes layer {} a {} layer of {}, which has no such tensor", *layer,
                     config.is_moe(*layer) ? "MoE" : "dense", config.model_type);
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
  if (config.family == Family::deepseek_v4) {
    const std::optional<uint32_t> stage = stage_of(tensor);
    return is_deepseek_v4_draft_copy(tensor) ||
           (stage && *stage < config.draft.num_stages && config.num_draft_layers == 0);
  }
  const std::optional<uint32_t> layer = layer_of(tensor);
  if (!layer || *layer < config.num_layers || *layer - config.num_layers >= config.num_mtp_layers)
    return false;
  if (*layer >= config.total_layers()) return true;
  // Of a draft layer that is held only the copies of what it shares with the model.
  const std::string prefix = fmt::format("model.layers.{}.", *layer);
  return tensor.starts_with(prefix + "embed_tokens.") || tensor.starts_with(prefix + "shared_head.head.");
}

Result<ResolvedTensors> resolve_tensors(const LoadPlan& plan, const Checkpoint& checkpoint,
                                        const ModelConfig& config, const HeldParts& held) {
  ResolvedTensors resolved;
  resolved.readers.resize(plan.claims().size());
  std::unordered_set<size_t> table_claims;
  for (const TableItem& item : plan.tables()) table_claims.insert(item.claim);
  NamedTensors tensors(checkpoint, config);
  TANDEM_TRY(tensors.index());
  TANDEM_TRY(check_drafter(tensors, checkpoint, config));
  std::unordered_set<std::string_view> scales;  // that belong to a claimed tensor
  for (size_t i = 0; i < plan.claims().size(); ++i) {
    const TensorClaim& claim = plan.claims()[i];
    const StoredTensor* stored = tensors.find(claim.tensor);
    if (stored == nullptr) {
      const bool of_dspark = stage_of(claim.tensor) && config.draft.kind == DraftKind::dspark;
      return make_error(
          ErrorCode::not_found,
          fmt::format("{}: tensor '{}' {} is missing; config.json ({}{}) calls for it{}{}",
                      checkpoint.folder(), claim.tensor, shape_text(claim.shape), config.model_type,
                      of_dspark ? ", its dspark_* keys" : "",
                      stage_of(claim.tensor) || layer_of(claim.tensor).value_or(0) >= config.num_layers
                          ? " to draft tokens; speculative: off does without"
                          : "",
                      claim.when_missing));
    }
    if (!has_shape(*stored->info, claim)) {
      return make_error(
          ErrorCode::data_loss,
          fmt::format("{}: tensor '{}' has the shape {}; config.json calls for {}{}", stored->file->path(),
                      printable(stored->info->name), shape_text(stored->info->shape), shape_text(claim.shape),
                      is_fp4_pairs(stored->info->dtype) ? ", as I8 half as many columns" : ""));
    }
    TANDEM_ASSIGN(const StoredTensor* const scale, tensors.scale_of(plan, claim));
    if (scale != nullptr) scales.insert(scale->info->name);
    if (!is_held(claim, held) || table_claims.contains(i)) continue;
    if (claim.fp4_cols != 0) {
      TANDEM_ASSIGN(resolved.readers[i], MatrixReader::create_fp4_blocks(*stored, scale, claim.fp4_cols));
    } else if (claim.turned) {
      TANDEM_ASSIGN(resolved.readers[i], MatrixReader::create_turned(*stored, claim.interleaved));
    } else {
      TANDEM_ASSIGN(resolved.readers[i], MatrixReader::create(*stored, scale, config.quantization.block_rows,
                                                              config.quantization.block_cols));
    }
    resolved.stored_bytes += stored->info->bytes() + (scale != nullptr ? scale->info->bytes() : 0);
  }
  for (const TableItem& item : plan.tables()) {
    const TensorClaim& claim = plan.claims()[item.claim];
    const StoredTensor* stored = is_held(claim, held) ? tensors.find(claim.tensor) : nullptr;
    if (stored != nullptr) {
      TANDEM_TRY(check_table(*stored));
      resolved.stored_bytes += stored->info->bytes();
    }
    resolved.tables.push_back(stored);
  }
  size_t ignored = 0;
  for (const StoredTensor& stored : checkpoint.tensors()) {
    const std::string name = tensors.name_of(stored);
    if (plan.find(name) != nullptr || scales.contains(stored.info->name)) continue;
    if (is_ignorable(name, config)) {
      ++ignored;
      continue;
    }
    return make_error(ErrorCode::data_loss,
                      fmt::format("{}: tensor '{}' belongs to nothing: {}", stored.file->path(),
                                  printable(stored.info->name), why_unknown(printable(name), config)));
  }
  if (ignored != 0) {
    log_info(fmt::format(
        "{}: ignored {} tensors that are not needed (RoPE tables, multi-token prediction, tied head)",
        checkpoint.folder(), ignored));
  }
  return resolved;
}

}  // namespace tandem
