// GraniteMoE: Mixtral's block with four multipliers and the experts of a layer stacked in one tensor.
#include "model/families.h"
#include "model/load_plan.h"

namespace tandem {

void parse_granite_moe(ConfigReader& reader, ModelConfig& config) {
  config.max_position_embeddings = reader.u32_or("max_position_embeddings", 2048, 1);
  config.rms_norm_eps = static_cast<float>(reader.positive_or("rms_norm_eps", 1e-6));
  parse_gqa(reader, config, config.attention.num_heads, 10000.0);
  // It is the softmax scale itself, not a factor on 1 / sqrt(head_dim).
  config.attention.softmax_scale = static_cast<float>(reader.positive_or("attention_multiplier", 1.0));
  config.embedding_multiplier = static_cast<float>(reader.positive_or("embedding_multiplier", 1.0));
  config.residual_multiplier = static_cast<float>(reader.positive_or("residual_multiplier", 1.0));
  config.logits_divisor = static_cast<float>(reader.positive_or("logits_scaling", 1.0));
  if (reader.text_or("position_embedding_type", "rope") != "rope") {
    reader.fail(ErrorCode::unsupported, "position_embedding_type",
                "is " + reader.written("position_embedding_type") + "; rope is implemented");
  }
  config.moe_intermediate_size = reader.u32("intermediate_size", 1);

  RouterConfig& router = config.router;
  router.num_experts = reader.u32_or("num_local_experts", 8, 1, kMostExperts);
  router.top_k = reader.u32_or("num_experts_per_tok", 2, 1);
  router.score = RouterScore::top_k_logits;
  check_router(reader, router, "num_local_experts");
}

void plan_granite_moe(const ModelConfig& config, LoadPlan& plan, ModelWeights& weights) {
  const uint32_t hidden = config.hidden_size, intermediate = config.moe_intermediate_size;
  const uint32_t experts = config.router.num_experts;
  plan_ends(config, plan, weights);
  for (uint32_t l = 0; l < config.num_layers; ++l) {
    LayerWeights& layer = weights.layers[l];
    const std::string prefix = "model.layers." + std::to_string(l) + ".", moe = prefix + "block_sparse_moe.";
    plan.at_layer(l);
    plan_layer_norms(config, plan, prefix, layer.attention);
    plan_gqa(config, plan, prefix + "self_attn.", layer.attention);
    plan.matrix(layer.moe.router, WeightRole::router, moe + "router.layer.weight", experts, hidden);
    // One tensor for all experts: an expert's rows of input_linear are gate, then up.
    const size_t input =
        plan.claim(moe + "input_linear.weight", {experts, 2 * intermediate, hidden}, WeightRole::experts);
    const size_t output =
        plan.claim(moe + "output_linear.weight", {experts, hidden, intermediate}, WeightRole::experts);
    layer.moe.experts.resize(experts);
    for (uint32_t e = 0; e < experts; ++e) {
      plan.at_expert(e);
      MlpWeights& expert = layer.moe.experts[e];
      const uint64_t gate_up_rows = uint64_t{2} * intermediate;
      plan.pack(expert.gate_up, WeightRole::experts, PackArrangement::gate_up,
                {{input, e * gate_up_rows, gate_up_rows}}, hidden);
      plan.pack(expert.down, WeightRole::experts, PackArrangement::plain,
                {{output, uint64_t{e} * hidden, hidden}}, intermediate);
    }
    plan.at_expert(kNoExpert);
  }
}

}  // namespace tandem
