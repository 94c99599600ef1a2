// Mixtral: grouped-query attention; the router takes the softmax of the selected logits. w1 is gate, w3 up,
// w2 down.
#include "model/families.h"
#include "model/load_plan.h"

namespace tandem {

void parse_mixtral(ConfigReader& reader, ModelConfig& config) {
  config.max_position_embeddings = reader.u32_or("max_position_embeddings", 131072, 1);
  config.rms_norm_eps = static_cast<float>(reader.positive_or("rms_norm_eps", 1e-5));
  parse_gqa(reader, config, reader.is_null("num_key_value_heads") ? config.attention.num_heads : 8, 1e6);
  refuse_sliding_window(reader, config);
  config.moe_intermediate_size = reader.u32_or("intermediate_size", 14336, 1);

  RouterConfig& router = config.router;
  router.num_experts = reader.u32_or("num_local_experts", 8, 1, kMostExperts);
  router.top_k = reader.u32_or("num_experts_per_tok", 2, 1);
  router.score = RouterScore::top_k_logits;
  check_router(reader, router, "num_local_experts");
}

void plan_mixtral(const ModelConfig& config, LoadPlan& plan, ModelWeights& weights) {
  plan_ends(config, plan, weights);
  for (uint32_t l = 0; l < config.num_layers; ++l) {
    LayerWeights& layer = weights.layers[l];
    const std::string prefix = "model.layers." + std::to_string(l) + ".", moe = prefix + "block_sparse_moe.";
    plan.at_layer(l);
    plan_layer_norms(config, plan, prefix, layer.attention);
    plan_gqa(config, plan, prefix + "self_attn.", layer.attention);
    plan.matrix(layer.moe.router, WeightRole::router, moe + "gate.weight", config.router.num_experts,
                config.hidden_size);
    layer.moe.experts.resize(config.router.num_experts);
    for (uint32_t e = 0; e < config.router.num_experts; ++e) {
      plan.at_expert(e);
      const std::string expert = moe + "experts." + std::to_string(e) + ".";
      plan.mlp(layer.moe.experts[e], WeightRole::experts,
               {.gate = expert + "w1.weight", .up = expert + "w3.weight", .down = expert + "w2.weight"},
               config.moe_intermediate_size, config.hidden_size);
    }
    plan.at_expert(kNoExpert);
  }
}

}  // namespace tandem
