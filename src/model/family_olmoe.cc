// OLMoE: grouped-query attention with one norm over all heads of q and one over those of k, values of q, k
// and v that may be clipped; softmax router whose weights are not renormalised.
#include "model/families.h"
#include "model/load_plan.h"

namespace tandem {

void parse_olmoe(ConfigReader& reader, ModelConfig& config) {
  config.max_position_embeddings = reader.u32_or("max_position_embeddings", 4096, 1);
  config.rms_norm_eps = static_cast<float>(reader.positive_or("rms_norm_eps", 1e-5));
  refuse_other_head_dim(reader, config);
  parse_gqa(reader, config, config.attention.num_heads, 10000.0);
  config.attention.whole_qk_norm = true;
  if (reader.has("clip_qkv"))
    config.attention.qkv_bound = static_cast<float>(reader.positive_or("clip_qkv", 1.0));
  config.attention.qkv_bias = config.attention.output_bias = reader.boolean_or("attention_bias", false);
  // A default that released files do not have: theirs say 1024.
  config.moe_intermediate_size = reader.u32_or("intermediate_size", 2048, 1);

  RouterConfig& router = config.router;
  router.num_experts = reader.u32_or("num_experts", 64, 1, kMostExperts);
  router.top_k = reader.u32_or("num_experts_per_tok", 8, 1);
  router.score = RouterScore::softmax;
  router.renormalize = reader.boolean_or("norm_topk_prob", false);
  check_router(reader, router, "num_experts");
}

void plan_olmoe(const ModelConfig& config, LoadPlan& plan, ModelWeights& weights) {
  plan_ends(config, plan, weights);
  for (uint32_t l = 0; l < config.num_layers; ++l) {
    LayerWeights& layer = weights.layers[l];
    const std::string prefix = "model.layers." + std::to_string(l) + ".", mlp = prefix + "mlp.";
    plan.at_layer(l);
    plan_layer_norms(config, plan, prefix, layer.attention);
    plan_gqa(config, plan, prefix + "self_attn.", layer.attention);
    plan.matrix(layer.moe.router, WeightRole::router, mlp + "gate.weight", config.router.num_experts,
                config.hidden_size);
    plan_numbered_experts(config, plan, mlp + "experts.", layer.moe);
  }
}

}  // namespace tandem
