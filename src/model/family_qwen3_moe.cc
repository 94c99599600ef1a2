// Qwen3-MoE: grouped-query attention with a norm on each head of q and k; softmax router.
#include "model/families.h"
#include "model/load_plan.h"

namespace tandem {

void parse_qwen3_moe(ConfigReader& reader, ModelConfig& config) {
  config.max_position_embeddings = reader.u32_or("max_position_embeddings", 32768, 1);
  config.rms_norm_eps = static_cast<float>(reader.positive_or("rms_norm_eps", 1e-6));
  parse_gqa(reader, config, 4, 10000.0);
  config.attention.per_head_qk_norm = true;
  if (reader.boolean_or("use_sliding_window", false)) refuse_sliding_window(reader, config);

  parse_sparse_step(reader, config, std::nullopt);
  config.moe_intermediate_size = reader.u32_or("moe_intermediate_size", 768, 1);

  RouterConfig& router = config.router;
  router.num_experts = reader.u32_or("num_experts", 128, 1, kMostExperts);
  router.top_k = reader.u32_or("num_experts_per_tok", 8, 1);
  router.score = RouterScore::softmax;
  router.renormalize =
      reader.boolean_or("norm_topk_prob", false);  // released files say true; absent means false
  check_router(reader, router, "num_experts");
}

void plan_qwen3_moe(const ModelConfig& config, LoadPlan& plan, ModelWeights& weights) {
  plan_ends(config, plan, weights);
  for (uint32_t l = 0; l < config.num_layers; ++l) {
    LayerWeights& layer = weights.layers[l];
    const std::string prefix = "model.layers." + std::to_string(l) + ".";
    plan.at_layer(l);
    plan_layer_norms(config, plan, prefix, layer.attention);
    plan_gqa(config, plan, prefix + "self_attn.", layer.attention);
    const std::string mlp = prefix + "mlp.";
    if (!config.is_moe(l)) {
      plan_gated_mlp(plan, layer.dense, WeightRole::dense, mlp, config.dense_intermediate_size,
                     config.hidden_size);
      continue;
    }
    plan.matrix(layer.moe.router, WeightRole::router, mlp + "gate.weight", config.router.num_experts,
                config.hidden_size);
    plan_numbered_experts(config, plan, mlp + "experts.", layer.moe);
  }
}

}  // namespace tandem
