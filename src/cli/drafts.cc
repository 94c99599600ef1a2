#include "cli/drafts.h"

#include <algorithm>
#include <string>

#include "base/log.h"
#include "checkpoint/checkpoint.h"

namespace tandem {
namespace {

// Why this model cannot draft here; empty: it can.
Result<std::string> why_not(const std::string& folder, const ModelConfig& config) {
  const DraftConfig& draft = config.draft;
  if (draft.kind == DraftKind::none)
    return config.model_type + " brings no drafter (num_nextn_predict_layers)";
  if (draft.kind == DraftKind::dspark && draft.block_size > kMaxDraftBlock) {
    return "blocks of " + std::to_string(draft.block_size) + " drafts (dspark_block_size): up to " +
           std::to_string(kMaxDraftBlock) + " are implemented";
  }
  if (draft.kind == DraftKind::mtp && draft.num_stages != 1) {
    return std::to_string(draft.num_stages) +
           " layers of multi-token prediction (num_nextn_predict_layers): 1 is "
           "implemented";
  }
  TANDEM_ASSIGN(const Checkpoint checkpoint, Checkpoint::open(folder));
  const std::string prefix = config.family == Family::deepseek_v4
                                 ? "mtp.0."
                                 : "model.layers." + std::to_string(config.num_layers) + ".";
  const auto tensors = checkpoint.tensors();
  const bool has = std::ranges::any_of(tensors, [&](const StoredTensor& tensor) {
    return tensor.info->name.find(prefix) != std::string::npos;
  });
  return has ? std::string() : folder + " has no tensors " + prefix + "* although config.json speaks of them";
}

}  // namespace

Status settle_drafts(const Settings& settings, ModelConfig& config) {
  const std::string& wanted = settings.engine.speculative;
  if (wanted == "off") return {};
  TANDEM_ASSIGN(const std::string reason, why_not(settings.model, config));
  if (reason.empty()) {
    const int64_t said = settings.engine.num_speculative_tokens;
    if (config.draft.kind == DraftKind::dspark && said > config.draft.block_size) {
      return make_error(ErrorCode::invalid_argument,
                        "engine.num_speculative_tokens: " + std::to_string(said) + ": the drafter of " +
                            settings.model + " drafts blocks of " + std::to_string(config.draft.block_size) +
                            " (dspark_block_size); that many, fewer, or 0 would do");
    }
    config.hold_drafts();
    return {};
  }
  if (wanted == "on") {
    return make_error(ErrorCode::unsupported, "engine.speculative: on: " + reason + "; use auto or off");
  }
  if (config.draft.kind != DraftKind::none) log_info("speculative: auto: no drafts: " + reason);
  return {};
}

uint32_t drafts_in_a_step(const Settings& settings, const ModelConfig& config) {
  if (config.num_draft_layers == 0) return 0;
  const int64_t said = settings.engine.num_speculative_tokens;
  if (said > 0) return static_cast<uint32_t>(said);
  return config.draft.kind == DraftKind::dspark ? std::min(config.draft.block_size, kMaxDraftTokens)
                                                : config.draft.num_stages;
}

DraftBlock block_of(const ModelConfig& config) {
  if (config.num_draft_layers == 0 || config.draft.kind != DraftKind::dspark) return {};
  return {config.draft.block_size, config.compressed.window, config.draft.noise_token_id};
}

}  // namespace tandem
