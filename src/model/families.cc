#include "model/families.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "model/family_deepseek_v4.h"
#include "model/rope_config.h"

namespace tandem {
namespace {

constexpr std::array<FamilyEntry, 13> kFamilies = {{
    {"deepseek_v2", Family::deepseek_v2, parse_deepseek_v2, plan_deepseek},
    {"deepseek_v3", Family::deepseek_v3, parse_deepseek_v3, plan_deepseek},
    {"kimi_k2", Family::deepseek_v3, parse_deepseek_v3, plan_deepseek},
    {"qwen3_moe", Family::qwen3_moe, parse_qwen3_moe, plan_qwen3_moe},
    {"mixtral", Family::mixtral, parse_mixtral, plan_mixtral},
    {"granitemoe", Family::granite_moe, parse_granite_moe, plan_granite_moe},
    {"olmoe", Family::olmoe, parse_olmoe, plan_olmoe},
    {"glm4_moe_lite", Family::deepseek_v3, parse_glm4_moe_lite, plan_deepseek},
    {"qwen2_moe", Family::qwen2_moe, parse_qwen2_moe, plan_qwen2_moe},
    {"glm4_moe", Family::glm4_moe, parse_glm4_moe, plan_glm4_moe},
    {"gpt_oss", Family::gpt_oss, parse_gpt_oss, plan_gpt_oss},
    {"deepseek_v4", Family::deepseek_v4, parse_deepseek_v4, plan_deepseek_v4, canonical_deepseek_v4_name},
    {"deepseek_ref", Family::deepseek_v4, parse_deepseek_v4, plan_deepseek_v4, canonical_deepseek_v4_name},
}};

}  // namespace

std::span<const FamilyEntry> family_entries() {
  return kFamilies;
}

const FamilyEntry& family_entry(Family family) {
  return *std::ranges::find(kFamilies, family, &FamilyEntry::family);
}

namespace {

// Heads and their width; the rotation is still to be read.
void parse_heads(ConfigReader& reader, ModelConfig& config, uint32_t default_kv_heads) {
  AttentionConfig& attention = config.attention;
  attention.kind = AttentionKind::gqa;
  attention.num_kv_heads = reader.u32_or("num_key_value_heads", default_kv_heads, 1);
  if (!reader.has("head_dim") && config.hidden_size % attention.num_heads != 0) {
    reader.fail(ErrorCode::invalid_argument, "head_dim",
                fmt::format("is absent, and hidden_size {} does not divide by num_attention_heads {}",
                            config.hidden_size, attention.num_heads));
  }
  attention.head_dim = reader.u32_or("head_dim", config.hidden_size / attention.num_heads, 1);
  if (attention.num_heads % attention.num_kv_heads != 0) {
    reader.fail(ErrorCode::invalid_argument, "num_key_value_heads",
                fmt::format("is {}; a divisor of num_attention_heads {} would do", attention.num_kv_heads,
                            attention.num_heads));
  }
  check_width(reader, "head_dim",
              (uint64_t{attention.num_heads} + 2 * attention.num_kv_heads) * attention.head_dim);
  attention.softmax_scale = static_cast<float>(1 / std::sqrt(static_cast<double>(attention.head_dim)));
}

}  // namespace

void parse_gqa(ConfigReader& reader, ModelConfig& config, uint32_t default_kv_heads, double default_theta) {
  parse_heads(reader, config, default_kv_heads);
  config.attention.rope = parse_rope(reader, {.theta = default_theta,
                                              .dim = config.attention.head_dim,
                                              .layout = RopeLayout::half_split,
                                              .max_position_embeddings = config.max_position_embeddings});
}

void parse_partial_gqa(ConfigReader& reader, ModelConfig& config, uint32_t default_kv_heads,
                       double default_theta, double default_share) {
  parse_heads(reader, config, default_kv_heads);
  const std::string key = "partial_rotary_factor";
  // transformers 5 writes it among rope_parameters.
  const double share = reader.number_or(key, reader.object("rope_parameters").number_or(key, default_share));
  const double dim = std::floor(config.attention.head_dim * share);
  if (!(share > 0 && share <= 1) || dim < 2 || std::fmod(dim, 2) != 0) {
    reader.fail(ErrorCode::unsupported, key,
                fmt::format("is {} of a head_dim of {}; an even number of rotated values, up to all, is "
                            "implemented",
                            share, config.attention.head_dim));
    return;
  }
  config.attention.rope = parse_rope(reader, {.theta = default_theta,
                                              .dim = static_cast<uint32_t>(dim),
                                              .layout = RopeLayout::half_split,
                                              .max_position_embeddings = config.max_position_embeddings,
                                              .partial = true});
}

void refuse_other_head_dim(ConfigReader& reader, const ModelConfig& config) {
  if (!reader.has("head_dim")) return;
  if (uint64_t{reader.u32("head_dim", 1)} * config.attention.num_heads == config.hidden_size) return;
  reader.fail(ErrorCode::unsupported, "head_dim",
              "is " + reader.written("head_dim") + "; hidden_size / num_attention_heads is implemented");
}

void parse_sparse_step(ConfigReader& reader, ModelConfig& config, std::optional<uint32_t> default_width) {
  const uint32_t step = reader.u32_or("decoder_sparse_step", 1, 1);
  const std::vector<uint32_t> dense = reader.u32_list("mlp_only_layers");
  bool any_dense = false;
  for (uint32_t layer = 0; layer < config.num_layers; ++layer) {
    if ((layer + 1) % step != 0 || std::ranges::find(dense, layer) != dense.end()) {
      config.layer_ffn[layer] = FfnKind::dense;
      any_dense = true;
    }
  }
  if (!any_dense) return;
  config.dense_intermediate_size = default_width ? reader.u32_or("intermediate_size", *default_width, 1)
                                                 : reader.u32("intermediate_size", 1);
}

void check_width(ConfigReader& reader, const std::string& key, uint64_t rows) {
  if (rows > ConfigReader::kLargestDimension) {
    reader.fail(ErrorCode::invalid_argument, key,
                fmt::format("is {}, which makes a projection of {} rows; {} would do", reader.written(key),
                            rows, ConfigReader::kLargestDimension));
  }
}

void check_router(ConfigReader& reader, const RouterConfig& router, const std::string& experts_key) {
  const auto refuse = [&](const std::string& key, const std::string& what) {
    reader.fail(ErrorCode::invalid_argument, key, what);
  };
  if (reader.failed()) return;
  if (router.top_k > router.num_experts) {
    refuse("num_experts_per_tok",
           fmt::format("is {} of {} experts ({})", router.top_k, router.num_experts, experts_key));
    return;
  }
  if (router.num_experts % router.num_groups != 0) {
    refuse("n_group", fmt::format("is {}, which does not divide {} {}", router.num_groups, experts_key,
                                  router.num_experts));
    return;
  }
  const uint32_t group = router.num_experts / router.num_groups;
  if (router.groups_kept > router.num_groups) {
    refuse("topk_group", fmt::format("is {} of {} groups (n_group)", router.groups_kept, router.num_groups));
  }
  if (router.top_k > router.groups_kept * group) {
    refuse("num_experts_per_tok", fmt::format("is {}, and the {} kept groups of {} hold fewer experts",
                                              router.top_k, router.groups_kept, group));
  }
  if (router.num_groups > 1 && router.group_score == GroupScore::top2_sum && group < 2) {
    refuse("n_group", fmt::format("is {}: groups of one expert have no two best", router.num_groups));
  }
}

void refuse_sliding_window(ConfigReader& reader, const ModelConfig& config) {
  const uint32_t window = reader.u32_or("sliding_window", 0, 1);
  if (window != 0 && window < config.max_position_embeddings) {
    reader.fail(
        ErrorCode::unsupported, "sliding_window",
        fmt::format(
            "is {}, shorter than max_position_embeddings {}; windows are not implemented for this family",
            window, config.max_position_embeddings));
  }
}

}  // namespace tandem
