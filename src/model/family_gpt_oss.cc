// gpt-oss: grouped-query attention with biases and sinks, by turns over a window and over all keys; experts
// with biases, whose rows of gate and up alternate: in mxfp4 as released, or as numbers and turned, which is
// how transformers saves them once it has dequantised them.
#include <fmt/core.h>

#include "checkpoint/matrix_reader.h"
#include "model/families.h"
#include "model/load_plan.h"

namespace tandem {
namespace {

// sigmoid's factor in the experts: no key of config.json, the same in every release.
constexpr float kSwigluAlpha = 1.702f;

void parse_windows(ConfigReader& reader, ModelConfig& config) {
  const uint32_t window = reader.u32_or("sliding_window", 128, 1);
  std::vector<std::string> types = reader.texts("layer_types");
  if (types.empty()) {
    for (uint32_t layer = 0; layer < config.num_layers; ++layer)
      types.push_back(layer % 2 == 0 ? "sliding_attention" : "full_attention");
  }
  if (types.size() != config.num_layers) {
    reader.fail(
        ErrorCode::invalid_argument, "layer_types",
        fmt::format("has {} entries; num_hidden_layers {} would do", types.size(), config.num_layers));
    return;
  }
  for (const std::string& type : types) {
    if (type != "sliding_attention" && type != "full_attention") {
      reader.fail(ErrorCode::unsupported, "layer_types",
                  fmt::format("has '{}'; sliding_attention and full_attention are implemented", type));
    }
    config.attention.windows.push_back(type == "sliding_attention" ? window : 0);
  }
}

bool has_blocks(const ModelConfig& config) {
  return config.quantization.method == "mxfp4";
}

// Blocks of fp4 have whole rows.
void check_blocks(ConfigReader& reader, const std::string& key, uint32_t cols) {
  if (cols % kFp4BlockCols == 0) return;
  reader.fail(ErrorCode::unsupported, key,
              fmt::format("is {}; mxfp4 weights have blocks of {} columns", cols, kFp4BlockCols));
}

// One tensor for all experts of a layer, and where in it the rows of one expert are.
struct ExpertStacks {
  size_t gate_up = 0, down = 0;
  uint32_t intermediate = 0, hidden = 0;
  bool rows_alternate = false;  // a row of gate and the row of up behind it are seen as one

  SourceRows gate(uint32_t expert) const {
    return {gate_up, uint64_t{rows_alternate ? 1u : 2u} * expert * intermediate, intermediate};
  }
  SourceRows up(uint32_t expert) const {
    SourceRows rows = gate(expert);
    (rows_alternate ? rows.col_begin : rows.begin) += rows_alternate ? hidden : intermediate;
    return rows;
  }
};

ExpertStacks claim_blocks(const ModelConfig& config, LoadPlan& plan, const std::string& stack) {
  const uint32_t hidden = config.hidden_size, intermediate = config.moe_intermediate_size;
  const uint32_t experts = config.router.num_experts;
  const size_t gate_up = plan.claim_fp4_blocks(stack + "gate_up_proj_blocks", experts, 2 * intermediate,
                                               hidden, uint64_t{2} * hidden);
  plan.when_missing(gate_up, "; a config.json without quantization_config reads gate_up_proj");
  const size_t down =
      plan.claim_fp4_blocks(stack + "down_proj_blocks", experts, hidden, intermediate, intermediate);
  return {gate_up, down, intermediate, hidden, true};
}

ExpertStacks claim_numbers(const ModelConfig& config, LoadPlan& plan, const std::string& stack) {
  const uint32_t hidden = config.hidden_size, intermediate = config.moe_intermediate_size;
  const uint32_t experts = config.router.num_experts;
  const size_t gate_up = plan.claim_turned(stack + "gate_up_proj", experts, 2 * intermediate, hidden, true);
  plan.when_missing(gate_up,
                    "; with the quantization_config of released files, quant_method mxfp4, it reads "
                    "gate_up_proj_blocks");
  const size_t down = plan.claim_turned(stack + "down_proj", experts, hidden, intermediate, false);
  return {gate_up, down, intermediate, hidden, false};
}

}  // namespace

void parse_gpt_oss(ConfigReader& reader, ModelConfig& config) {
  if (!has_blocks(config) && !config.quantization.method.empty()) {
    reader.fail(ErrorCode::unsupported, "quantization_config",
                fmt::format("is {}, which is not implemented for gpt_oss: mxfp4 with gate_up_proj_blocks, or "
                            "none with gate_up_proj, would do",
                            config.quantization.method));
    return;
  }
  config.max_position_embeddings = reader.u32_or("max_position_embeddings", 131072, 1);
  config.rms_norm_eps = static_cast<float>(reader.positive_or("rms_norm_eps", 1e-5));
  reader.u32("head_dim", 1);  // its default is not hidden / heads
  if (!reader.has("rope_scaling") && !reader.has("rope_parameters")) {
    reader.fail(
        ErrorCode::invalid_argument, "rope_scaling",
        "is absent; the yarn section of the released files, or {\"rope_type\": \"default\"}, would do");
  }
  parse_gqa(reader, config, 8, 150000.0);
  AttentionConfig& attention = config.attention;
  attention.qkv_bias = attention.output_bias = reader.boolean_or("attention_bias", true);
  attention.has_sinks = true;
  parse_windows(reader, config);

  config.moe_intermediate_size = reader.u32_or("intermediate_size", 2880, 1);
  if (has_blocks(config)) {
    check_blocks(reader, "hidden_size", config.hidden_size);
    check_blocks(reader, "intermediate_size", config.moe_intermediate_size);
  }
  config.swiglu_limit = static_cast<float>(reader.positive_or("swiglu_limit", 7.0));
  config.swiglu_alpha = kSwigluAlpha;

  RouterConfig& router = config.router;
  router.num_experts = reader.u32_or("num_local_experts", 128, 1, kMostExperts);
  router.top_k = reader.u32_or("num_experts_per_tok", reader.u32_or("experts_per_token", 4, 1), 1);
  router.score = RouterScore::top_k_logits;
  router.has_logit_bias = true;
  check_router(reader, router, "num_local_experts");
}

void plan_gpt_oss(const ModelConfig& config, LoadPlan& plan, ModelWeights& weights) {
  const uint32_t hidden = config.hidden_size, intermediate = config.moe_intermediate_size;
  const uint32_t experts = config.router.num_experts;
  plan_ends(config, plan, weights);
  for (uint32_t l = 0; l < config.num_layers; ++l) {
    LayerWeights& layer = weights.layers[l];
    const std::string prefix = "model.layers." + std::to_string(l) + ".", mlp = prefix + "mlp.";
    plan.at_layer(l);
    plan_layer_norms(config, plan, prefix, layer.attention);
    plan_gqa(config, plan, prefix + "self_attn.", layer.attention);
    plan.vector(layer.attention.sinks, WeightRole::attention, prefix + "self_attn.sinks",
                config.attention.num_heads);
    plan.matrix(layer.moe.router, WeightRole::router, mlp + "router.weight", experts, hidden);
    plan.vector(layer.moe.logit_bias, WeightRole::router, mlp + "router.bias", experts);
    const std::string stack = mlp + "experts.";
    const ExpertStacks claims =
        has_blocks(config) ? claim_blocks(config, plan, stack) : claim_numbers(config, plan, stack);
    const size_t gate_up_bias =
        plan.claim(stack + "gate_up_proj_bias", {experts, uint64_t{2} * intermediate}, WeightRole::experts);
    const size_t down_bias = plan.claim(stack + "down_proj_bias", {experts, hidden}, WeightRole::experts);
    layer.moe.experts.resize(experts);
    for (uint32_t e = 0; e < experts; ++e) {
      plan.at_expert(e);
      MlpWeights& expert = layer.moe.experts[e];
      plan.pack(expert.gate_up, WeightRole::experts, PackArrangement::gate_up, {claims.gate(e), claims.up(e)},
                hidden);
      plan.pack(expert.down, WeightRole::experts, PackArrangement::plain,
                {{claims.down, uint64_t{e} * hidden, hidden}}, intermediate);
      plan.expert_bias(expert.gate_up_bias, gate_up_bias, intermediate);
      plan.expert_bias(expert.down_bias, down_bias, 0);
    }
    plan.at_expert(kNoExpert);
  }
}

}  // namespace tandem
