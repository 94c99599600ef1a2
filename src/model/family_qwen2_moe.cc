// Qwen1.5-MoE and Qwen2-MoE: grouped-query attention with biases on q, k and v; softmax router whose weights
// are not renormalised; a shared expert of which each row takes the share that one more gate gives it.
#include "model/families.h"
#include "model/load_plan.h"

namespace tandem {

void parse_qwen2_moe(ConfigReader& reader, ModelConfig& config) {
  config.max_position_embeddings = reader.u32_or("max_position_embeddings", 32768, 1);
  config.rms_norm_eps = static_cast<float>(reader.positive_or("rms_norm_eps", 1e-6));
  refuse_other_head_dim(reader, config);
  parse_gqa(reader, config, 16, 10000.0);
  reader.require_false("attention_bias", "this family's key is qkv_bias");
  config.attention.qkv_bias = reader.boolean_or("qkv_bias", true);
  // Layers from max_window_layers on would have the window.
  if (reader.boolean_or("use_sliding_window", false) &&
      reader.u32_or("max_window_layers", 28) < config.num_layers) {
    if (!reader.has("sliding_window")) {
      reader.fail(ErrorCode::unsupported, "use_sliding_window",
                  "is true; windows are not implemented for this family");
    }
    refuse_sliding_window(reader, config);
  }
  parse_sparse_step(reader, config, 5632);
  config.moe_intermediate_size = reader.u32_or("moe_intermediate_size", 1408, 1);
  config.shared_intermediate_size = reader.u32_or("shared_expert_intermediate_size", 5632, 1);
  config.gates_shared_expert = true;

  RouterConfig& router = config.router;
  router.num_experts = reader.u32_or("num_experts", 60, 1, kMostExperts);
  router.top_k = reader.u32_or("num_experts_per_tok", 4, 1);
  router.score = RouterScore::softmax;
  router.renormalize = reader.boolean_or("norm_topk_prob", false);
  check_router(reader, router, "num_experts");
}

void plan_qwen2_moe(const ModelConfig& config, LoadPlan& plan, ModelWeights& weights) {
  const uint32_t hidden = config.hidden_size;
  plan_ends(config, plan, weights);
  for (uint32_t l = 0; l < config.num_layers; ++l) {
    LayerWeights& layer = weights.layers[l];
    const std::string prefix = "model.layers." + std::to_string(l) + ".", mlp = prefix + "mlp.";
    plan.at_layer(l);
    plan_layer_norms(config, plan, prefix, layer.attention);
    plan_gqa(config, plan, prefix + "self_attn.", layer.attention);
    if (!config.is_moe(l)) {
      plan_gated_mlp(plan, layer.dense, WeightRole::dense, mlp, config.dense_intermediate_size, hidden);
      continue;
    }
    plan.matrix(layer.moe.router, WeightRole::router, mlp + "gate.weight", config.router.num_experts, hidden);
    plan_numbered_experts(config, plan, mlp + "experts.", layer.moe);
    plan_gated_mlp(plan, layer.moe.shared, WeightRole::shared_experts, mlp + "shared_expert.",
                   config.shared_intermediate_size, hidden);
    plan.values(layer.moe.shared_gate, WeightRole::shared_experts, mlp + "shared_expert_gate.weight",
                {1, hidden});
  }
}

}  // namespace tandem
