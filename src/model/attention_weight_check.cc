#include "model/attention_weight_check.h"

#include <string>
#include <utility>

namespace tandem {
namespace {

std::unexpected<Error> differs(const std::string& name, const std::string& is, const std::string& wanted) {
  return make_error(ErrorCode::internal,
                    "weight " + name + " is " + is + " where the configuration needs " + wanted);
}

std::string shape_text(uint32_t rows, uint32_t cols) {
  return "[" + std::to_string(rows) + ", " + std::to_string(cols) + "]";
}

struct Checker {
  PackFormat format;

  Status matrix(const std::string& name, const PackedWeight& weight, uint32_t rows, uint32_t cols,
                PackArrangement arrangement = PackArrangement::plain) const {
    if (weight.empty()) return differs(name, "absent", shape_text(rows, cols));
    if (weight.rows != rows || weight.cols != cols) {
      return differs(name, shape_text(weight.rows, weight.cols), shape_text(rows, cols));
    }
    if (weight.format != format) return differs(name, "packed for another dtype", "the compute dtype");
    if (weight.arrangement != arrangement) return differs(name, "in another arrangement", "its own");
    return {};
  }

  Status vector(const std::string& name, const std::vector<float>& values, uint32_t size) const {
    if (values.size() == size) return {};
    return differs(name, std::to_string(values.size()) + " values", std::to_string(size));
  }

  Status heads(const std::string& name, const std::vector<PackedWeight>& weights, uint32_t count,
               uint32_t rows, uint32_t cols) const {
    if (weights.size() != count)
      return differs(name, std::to_string(weights.size()) + " heads", std::to_string(count));
    for (uint32_t head = 0; head < count; ++head) {
      TANDEM_TRY(matrix(name + "[" + std::to_string(head) + "]", weights[head], rows, cols));
    }
    return {};
  }

  Status gqa(const std::string& name, const ModelConfig& config, const AttentionWeights& weights) const {
    const AttentionConfig& attention = config.attention;
    const uint32_t width = attention.num_heads * attention.head_dim;
    TANDEM_TRY(matrix(name + "qkv", weights.qkv, width + 2 * attention.num_kv_heads * attention.head_dim,
                      config.hidden_size));
    if (attention.per_head_qk_norm) {
      TANDEM_TRY(vector(name + "q_norm", weights.q_norm, attention.head_dim));
      TANDEM_TRY(vector(name + "k_norm", weights.k_norm, attention.head_dim));
    }
    return matrix(name + "output", weights.output, config.hidden_size, width);
  }

  Status mla(const std::string& name, const ModelConfig& config, const AttentionWeights& weights) const {
    const AttentionConfig& a = config.attention;
    uint32_t query_in = config.hidden_size;
    if (a.q_lora_rank != 0) {
      TANDEM_TRY(matrix(name + "q_a", weights.q_a, a.q_lora_rank, config.hidden_size));
      TANDEM_TRY(vector(name + "q_a_norm", weights.q_a_norm, a.q_lora_rank));
      query_in = a.q_lora_rank;
    }
    TANDEM_TRY(
        matrix(name + "q_b", weights.q_b, a.num_heads * (a.qk_nope_head_dim + a.qk_rope_head_dim), query_in));
    TANDEM_TRY(matrix(name + "kv_a", weights.kv_a, a.kv_lora_rank + a.qk_rope_head_dim, config.hidden_size));
    TANDEM_TRY(vector(name + "kv_a_norm", weights.kv_a_norm, a.kv_lora_rank));
    TANDEM_TRY(
        heads(name + "key_absorb", weights.key_absorb, a.num_heads, a.kv_lora_rank, a.qk_nope_head_dim));
    TANDEM_TRY(heads(name + "value_absorb", weights.value_absorb, a.num_heads, a.v_head_dim, a.kv_lora_rank));
    return matrix(name + "output", weights.output, config.hidden_size, a.num_heads * a.v_head_dim);
  }
};

}  // namespace

Status check_attention_weights(const ModelConfig& config, const ModelWeights& weights) {
  const bool wide = weights.compute_dtype == DType::f32;
  if (!wide && weights.compute_dtype != DType::bf16) {
    return make_error(
        ErrorCode::unsupported,
        "compute dtype " + std::string(dtype_name(weights.compute_dtype)) + ": bf16 and f32 are implemented");
  }
  const Checker check{wide ? PackFormat::f32 : PackFormat::bf16};
  const size_t embedding = wide ? weights.embedding_f32.size() : weights.embedding_bf16.size();
  if (embedding != size_t{config.vocab_size} * config.hidden_size) {
    return differs("embedding", std::to_string(embedding) + " values",
                   shape_text(config.vocab_size, config.hidden_size));
  }
  TANDEM_TRY(check.vector("final_norm", weights.final_norm, config.hidden_size));
  TANDEM_TRY(check.matrix("head", weights.head, config.vocab_size, config.hidden_size));
  if (weights.layers.size() != config.num_layers) {
    return differs("layers", std::to_string(weights.layers.size()), std::to_string(config.num_layers));
  }
  const uint32_t rotated = config.attention.kind == AttentionKind::gqa ? config.attention.head_dim
                                                                       : config.attention.qk_rope_head_dim;
  if (config.attention.rope.dim == 0 || config.attention.rope.dim > rotated ||
      config.attention.rope.dim % 2 != 0) {
    return make_error(ErrorCode::internal, "rope dim " + std::to_string(config.attention.rope.dim) +
                                               " where a head has " + std::to_string(rotated) +
                                               " values to rotate");
  }
  for (uint32_t layer = 0; layer < config.num_layers; ++layer) {
    const std::string name = "layers." + std::to_string(layer) + ".";
    const AttentionWeights& attention = weights.layers[layer].attention;
    TANDEM_TRY(check.vector(name + "input_norm", attention.input_norm, config.hidden_size));
    TANDEM_TRY(check.vector(name + "post_attention_norm", attention.post_attention_norm, config.hidden_size));
    TANDEM_TRY(config.attention.kind == AttentionKind::gqa ? check.gqa(name, config, attention)
                                                           : check.mla(name, config, attention));
    if (config.is_moe(layer)) continue;
    const MlpWeights& dense = weights.layers[layer].dense;
    TANDEM_TRY(check.matrix(name + "mlp.gate_up", dense.gate_up, 2 * config.dense_intermediate_size,
                            config.hidden_size, PackArrangement::gate_up));
    TANDEM_TRY(
        check.matrix(name + "mlp.down", dense.down, config.hidden_size, config.dense_intermediate_size));
  }
  return {};
}

}  // namespace tandem
