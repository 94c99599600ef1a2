#include "bench/shape_config.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace tandem::bench {
namespace {

using Json = nlohmann::ordered_json;

// A context that no benchmark reaches.
constexpr uint32_t kMostPositions = 1u << 20;
// Layers of DeepSeek-V4 that see the window only, and with experts by token id, of its 43.
constexpr uint32_t kPlainLayers = 2, kHashLayers = 3;

Json yarn(double factor, uint32_t original) {
  return {{"type", "yarn"},
          {"factor", factor},
          {"original_max_position_embeddings", original},
          {"beta_fast", 32},
          {"beta_slow", 1}};
}

void add_granite(const ModelShape& shape, Json& config) {
  config["tie_word_embeddings"] = true;
  config["num_key_value_heads"] = shape.kv_heads;
  config["intermediate_size"] = shape.intermediate;
  config["num_local_experts"] = shape.experts;
  config["embedding_multiplier"] = 12.0;
  config["attention_multiplier"] = 0.015625;
  config["residual_multiplier"] = 0.22;
  config["logits_scaling"] = 6.0;
}

void add_qwen3(const ModelShape& shape, Json& config) {
  config["num_key_value_heads"] = shape.kv_heads;
  config["head_dim"] = shape.head_dim;
  config["moe_intermediate_size"] = shape.intermediate;
  config["num_experts"] = shape.experts;
  config["norm_topk_prob"] = true;
  config["rope_theta"] = 1e6;
}

void add_olmoe(const ModelShape& shape, Json& config) {
  config["num_key_value_heads"] = shape.kv_heads;
  config["intermediate_size"] = shape.intermediate;
  config["num_experts"] = shape.experts;
}

void add_gpt_oss(const ModelShape& shape, Json& config) {
  config["attention_bias"] = true;
  config["num_key_value_heads"] = shape.kv_heads;
  config["head_dim"] = shape.head_dim;
  config["intermediate_size"] = shape.intermediate;
  config["num_local_experts"] = shape.experts;
  config["sliding_window"] = 128;
  config["swiglu_limit"] = 7.0;
  config["rope_theta"] = 150000.0;
  config["rope_scaling"] = yarn(32, 4096);
  config["rope_scaling"]["truncate"] = false;
  config["quantization_config"] = {{"quant_method", "mxfp4"}};
}

void add_deepseek(const ModelShape& shape, uint32_t layers, Json& config) {
  config["num_key_value_heads"] = shape.heads;
  config["q_lora_rank"] = shape.q_lora == 0 ? Json() : Json(shape.q_lora);
  config["kv_lora_rank"] = shape.kv_lora;
  config["qk_nope_head_dim"] = shape.nope;
  config["qk_rope_head_dim"] = shape.rope;
  config["v_head_dim"] = shape.v;
  config["intermediate_size"] = shape.dense_intermediate;
  config["first_k_dense_replace"] = shape.dense_layers_of(layers);
  config["moe_layer_freq"] = 1;
  config["moe_intermediate_size"] = shape.intermediate;
  config["n_routed_experts"] = shape.experts;
  config["n_shared_experts"] = shape.shared / shape.intermediate;
  const bool v3 = shape.model_type == "deepseek_v3";
  // Groups of a smaller copy of V3 (tests): as many as its experts allow.
  config["n_group"] = v3 && shape.experts % 8 == 0 ? 8 : 1;
  config["topk_group"] = v3 && shape.experts % 8 == 0 ? 4 : 1;
  config["topk_method"] = v3 ? "noaux_tc" : "greedy";
  config["scoring_func"] = v3 ? "sigmoid" : "softmax";
  config["norm_topk_prob"] = v3;
  config["routed_scaling_factor"] = v3 ? 2.5 : 1.0;
  config["rope_scaling"] = yarn(40, 4096);
  config["rope_scaling"]["mscale"] = v3 ? 1.0 : 0.707;
  config["rope_scaling"]["mscale_all_dim"] = v3 ? 1.0 : 0.707;
}

void add_deepseek_v4(const ModelShape& shape, uint32_t layers, Json& config) {
  config["num_key_value_heads"] = 1;
  config["head_dim"] = shape.head_dim;
  config["q_lora_rank"] = shape.q_lora;
  config["qk_rope_head_dim"] = shape.rope;
  config["o_groups"] = 8;
  config["o_lora_rank"] = 1024;
  config["index_head_dim"] = 128;
  config["index_n_heads"] = 64;
  config["index_topk"] = 512;
  config["sliding_window"] = 128;
  config["hc_mult"] = 4;
  config["moe_intermediate_size"] = shape.intermediate;
  config["n_routed_experts"] = shape.experts;
  config["n_shared_experts"] = shape.shared / shape.intermediate;
  config["num_hash_layers"] = kHashLayers * layers / shape.layers;
  config["routed_scaling_factor"] = 1.5;
  config["swiglu_limit"] = 10.0;
  config["scoring_func"] = "sqrtsoftplus";
  config["topk_method"] = "noaux_tc";
  config["norm_topk_prob"] = true;
  config["compress_rope_theta"] = 160000;
  config["rope_scaling"] = yarn(16, 65536);
  Json ratios = Json::array();
  const uint32_t plain = kPlainLayers * layers / shape.layers;
  for (uint32_t layer = 0; layer < layers; ++layer)
    ratios.push_back(layer < plain ? 0 : (layer - plain) % 2 == 0 ? 4 : 128);
  config["compress_ratios"] = ratios;
}

}  // namespace

std::string shape_config_text(const ModelShape& shape, uint32_t layers) {
  Json config = {{"model_type", shape.model_type},
                 {"vocab_size", shape.vocab},
                 {"hidden_size", shape.hidden},
                 {"num_hidden_layers", layers},
                 {"num_attention_heads", shape.heads},
                 {"num_experts_per_tok", shape.top_k},
                 {"hidden_act", "silu"},
                 {"attention_bias", false},
                 {"tie_word_embeddings", false},
                 {"rms_norm_eps", 1e-6},
                 {"rope_theta", 10000.0},
                 {"max_position_embeddings", kMostPositions},
                 {"torch_dtype", "bfloat16"}};
  if (shape.model_type == "granitemoe") add_granite(shape, config);
  if (shape.model_type == "qwen3_moe") add_qwen3(shape, config);
  if (shape.model_type == "olmoe") add_olmoe(shape, config);
  if (shape.model_type == "gpt_oss") add_gpt_oss(shape, config);
  if (shape.model_type == "deepseek_v2" || shape.model_type == "deepseek_v3")
    add_deepseek(shape, layers, config);
  if (shape.model_type == "deepseek_v4") add_deepseek_v4(shape, layers, config);
  return config.dump();
}

Result<ModelConfig> shape_config(const ModelShape& shape, uint32_t layers) {
  if (shape.model_type.empty()) {
    std::string others;
    for (const ModelShape& other : model_shapes()) {
      if (!other.model_type.empty()) others += (others.empty() ? "" : ", ") + std::string(other.name);
    }
    return make_error(
        ErrorCode::unsupported,
        fmt::format("measure.shape: {} as a whole model: the engine does not implement the family "
                    "of {}; use bench moe, attention or kernels for it, or one of {}",
                    shape.name, shape.model, others));
  }
  if (layers == 0 || layers > shape.layers) {
    return make_error(ErrorCode::invalid_argument,
                      fmt::format("measure.layers: {}: {} has {} layers; use 1..{}", layers, shape.name,
                                  shape.layers, shape.layers));
  }
  return parse_model_config(shape_config_text(shape, layers), fmt::format("the shape {}", shape.name));
}

}  // namespace tandem::bench
