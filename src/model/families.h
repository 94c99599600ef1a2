// The families: how a config.json becomes a ModelConfig, and which tensors it then expects. Each has its own
// source file (family_*.cc); adding one means that file and its rows in families.cc.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "model/config_reader.h"
#include "model/model_config.h"
#include "model/model_weights.h"

namespace tandem {

class LoadPlan;

struct FamilyEntry {
  std::string_view model_type;  // as config.json writes it
  Family family;
  // Fills what differs between families; the common keys are there already. Errors go to the reader.
  void (*parse)(ConfigReader& reader, ModelConfig& config);
  // Claims every tensor of the model and says where in `weights` (layers already sized) each goes.
  void (*plan)(const ModelConfig& config, LoadPlan& plan, ModelWeights& weights);
  // The plan's name for a tensor of a checkpoint, where the family's files have several spellings; null: one.
  std::string (*canonical_name)(std::string_view stored) = nullptr;
};

std::span<const FamilyEntry> family_entries();
// The first entry of a family. Every family has one.
const FamilyEntry& family_entry(Family family);

// What families share when they parse.

// Ten times what any released model has; the bounds keep a hostile file from growing lists of experts or
// heads.
inline constexpr uint32_t kMostExperts = 4096;
inline constexpr uint32_t kMostHeads = 4096;

// Layers of grouped-query attention: heads, head_dim (hidden / heads when absent), rotation, softmax scale
// 1/sqrt(head_dim).
void parse_gqa(ConfigReader& reader, ModelConfig& config, uint32_t default_kv_heads, double default_theta);
// The same where a head rotates its first values only: partial_rotary_factor of them, or `default_share`.
void parse_partial_gqa(ConfigReader& reader, ModelConfig& config, uint32_t default_kv_heads,
                       double default_theta, double default_share);
// A head_dim that is not hidden_size / num_attention_heads is refused: the family has no other.
void refuse_other_head_dim(ConfigReader& reader, const ModelConfig& config);
// Which layers are dense by decoder_sparse_step and mlp_only_layers (Qwen), and their width.
void parse_sparse_step(ConfigReader& reader, ModelConfig& config, std::optional<uint32_t> default_width);
// num_nextn_predict_layers: a drafter of multi-token prediction behind the model's own layers.
void parse_mtp(ConfigReader& reader, ModelConfig& config);
// What a layer of multi-token prediction has beside those of the model.
void plan_mtp(const ModelConfig& config, LoadPlan& plan, const std::string& prefix, DraftWeights& weights);
// Router, selection bias, numbered experts and the fused shared one under DeepSeek's names, from `prefix` on.
void plan_deepseek_experts(const ModelConfig& config, LoadPlan& plan, const std::string& prefix,
                           MoeLayerWeights& weights);
// A router that scores by sigmoid, with a selection bias (DeepSeek-V3, GLM).
struct SigmoidRouterDefaults {
  uint32_t num_experts, top_k, groups, groups_kept;
  double scaling_factor;
};
void parse_sigmoid_router(ConfigReader& reader, ModelConfig& config, const SigmoidRouterDefaults& defaults);
// Refuses a projection of more rows than ConfigReader::kLargestDimension: products of dimensions must not
// wrap.
void check_width(ConfigReader& reader, const std::string& key, uint64_t rows);
// Checks num_experts, top_k and groups against each other.
void check_router(ConfigReader& reader, const RouterConfig& router, const std::string& experts_key);
// `sliding_window` that is shorter than the context is refused.
void refuse_sliding_window(ConfigReader& reader, const ModelConfig& config);

void parse_deepseek_v2(ConfigReader& reader, ModelConfig& config);
void parse_deepseek_v3(ConfigReader& reader, ModelConfig& config);
void parse_glm4_moe_lite(ConfigReader& reader, ModelConfig& config);
void parse_qwen3_moe(ConfigReader& reader, ModelConfig& config);
void parse_mixtral(ConfigReader& reader, ModelConfig& config);
void parse_granite_moe(ConfigReader& reader, ModelConfig& config);
void parse_olmoe(ConfigReader& reader, ModelConfig& config);
void parse_qwen2_moe(ConfigReader& reader, ModelConfig& config);
void parse_glm4_moe(ConfigReader& reader, ModelConfig& config);
void parse_gpt_oss(ConfigReader& reader, ModelConfig& config);
void parse_deepseek_v4(ConfigReader& reader, ModelConfig& config);

void plan_deepseek(const ModelConfig& config, LoadPlan& plan, ModelWeights& weights);
void plan_qwen3_moe(const ModelConfig& config, LoadPlan& plan, ModelWeights& weights);
void plan_mixtral(const ModelConfig& config, LoadPlan& plan, ModelWeights& weights);
void plan_granite_moe(const ModelConfig& config, LoadPlan& plan, ModelWeights& weights);
void plan_olmoe(const ModelConfig& config, LoadPlan& plan, ModelWeights& weights);
void plan_qwen2_moe(const ModelConfig& config, LoadPlan& plan, ModelWeights& weights);
void plan_glm4_moe(const ModelConfig& config, LoadPlan& plan, ModelWeights& weights);
void plan_gpt_oss(const ModelConfig& config, LoadPlan& plan, ModelWeights& weights);
void plan_deepseek_v4(const ModelConfig& config, LoadPlan& plan, ModelWeights& weights);

}  // namespace tandem
