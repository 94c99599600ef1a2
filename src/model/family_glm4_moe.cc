// GLM-4.5, 4.6 and 4.7 (glm4_moe): grouped-query attention whose heads rotate their first half, with biases
// on q, k and v and, in the larger ones, a norm on each head of q and k; experts as DeepSeek-V3 has them, and
// its layer of multi-token prediction.
#include "model/families.h"
#include "model/load_plan.h"

namespace tandem {

void parse_glm4_moe(ConfigReader& reader, ModelConfig& config) {
  config.max_position_embeddings = reader.u32_or("max_position_embeddings", 131072, 1);
  config.rms_norm_eps = static_cast<float>(reader.positive_or("rms_norm_eps", 1e-5));
  parse_partial_gqa(reader, config, 8, 10000.0, 0.5);
  config.attention.qkv_bias = reader.boolean_or("attention_bias", false);  // o_proj never has one
  config.attention.per_head_qk_norm = reader.boolean_or("use_qk_norm", false);
  parse_mtp(reader, config);

  const uint32_t first_dense = reader.u32_or("first_k_dense_replace", 1);
  for (uint32_t layer = 0; layer < config.num_layers && layer < first_dense; ++layer)
    config.layer_ffn[layer] = FfnKind::dense;
  if (first_dense > 0) config.dense_intermediate_size = reader.u32_or("intermediate_size", 10944, 1);
  config.moe_intermediate_size = reader.u32_or("moe_intermediate_size", 1408, 1);
  const uint64_t shared = uint64_t{reader.u32_or("n_shared_experts", 1)} * config.moe_intermediate_size;
  check_width(reader, "n_shared_experts", shared);  // the files store them fused
  config.shared_intermediate_size = static_cast<uint32_t>(shared);
  parse_sigmoid_router(
      reader, config, {.num_experts = 128, .top_k = 8, .groups = 1, .groups_kept = 1, .scaling_factor = 1.0});
}

void plan_glm4_moe(const ModelConfig& config, LoadPlan& plan, ModelWeights& weights) {
  const uint32_t hidden = config.hidden_size;
  plan_ends(config, plan, weights);
  for (uint32_t l = 0; l < config.total_layers(); ++l) {
    LayerWeights& layer = weights.layers[l];
    const std::string prefix = "model.layers." + std::to_string(l) + ".", mlp = prefix + "mlp.";
    plan.at_layer(l);
    if (l >= config.num_layers) plan_mtp(config, plan, prefix, weights.draft);
    plan_layer_norms(config, plan, prefix, layer.attention);
    plan_gqa(config, plan, prefix + "self_attn.", layer.attention);
    if (!config.is_moe(l)) {
      plan_gated_mlp(plan, layer.dense, WeightRole::dense, mlp, config.dense_intermediate_size, hidden);
      continue;
    }
    plan_deepseek_experts(config, plan, mlp, layer.moe);
  }
}

}  // namespace tandem
