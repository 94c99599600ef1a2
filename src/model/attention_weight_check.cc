#include "model/attention_weight_check.h"

#include <algorithm>
#include <string>
#include <utility>

#include "kernels/compressed_args.h"
#include "kernels/hyper_connection_args.h"
#include "model/compressed_state.h"

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
    // Codes are multiplied with bf16 activations, int8 weights with what those are quantised to.
    const bool coded = is_coded(weight.format) || weight.format == PackFormat::int8;
    const bool fits = weight.format == format || (format == PackFormat::bf16 && coded);
    if (!fits) return differs(name, "packed for another dtype", "the compute dtype");
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
    const uint32_t key_width = attention.num_kv_heads * attention.head_dim;
    if (attention.per_head_qk_norm || attention.whole_qk_norm) {
      const bool whole = attention.whole_qk_norm;
      TANDEM_TRY(vector(name + "q_norm", weights.q_norm, whole ? width : attention.head_dim));
      TANDEM_TRY(vector(name + "k_norm", weights.k_norm, whole ? key_width : attention.head_dim));
    }
    if (attention.qkv_bias) {
      TANDEM_TRY(vector(name + "q_bias", weights.q_bias, width));
      TANDEM_TRY(vector(name + "k_bias", weights.k_bias, key_width));
      TANDEM_TRY(vector(name + "v_bias", weights.v_bias, key_width));
    }
    if (attention.has_sinks) TANDEM_TRY(vector(name + "sinks", weights.sinks, attention.num_heads));
    if (attention.output_bias) {
      TANDEM_TRY(vector(name + "output_bias", weights.output_bias, config.hidden_size));
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
    TANDEM_TRY(
        heads(name + "key_expand", weights.key_expand, a.num_heads, a.qk_nope_head_dim, a.kv_lora_rank));
    TANDEM_TRY(heads(name + "value_absorb", weights.value_absorb, a.num_heads, a.v_head_dim, a.kv_lora_rank));
    return matrix(name + "output", weights.output, config.hidden_size, a.num_heads * a.v_head_dim);
  }

  Status compressed(const std::string& name, const ModelConfig& config, uint32_t ratio,
                    const AttentionWeights& weights) const {
    const AttentionConfig& a = config.attention;
    const CompressedAttentionConfig& c = config.compressed;
    const uint32_t width = a.num_heads * a.head_dim;
    TANDEM_TRY(matrix(name + "q_a", weights.q_a, a.q_lora_rank, config.hidden_size));
    TANDEM_TRY(vector(name + "q_a_norm", weights.q_a_norm, a.q_lora_rank));
    TANDEM_TRY(matrix(name + "q_b", weights.q_b, width, a.q_lora_rank));
    TANDEM_TRY(matrix(name + "kv_a", weights.kv_a, a.head_dim, config.hidden_size));
    TANDEM_TRY(vector(name + "kv_a_norm", weights.kv_a_norm, a.head_dim));
    TANDEM_TRY(vector(name + "sinks", weights.sinks, a.num_heads));
    TANDEM_TRY(heads(name + "output_groups", weights.output_groups, c.num_output_groups, c.output_lora_rank,
                     width / c.num_output_groups));
    TANDEM_TRY(matrix(name + "output", weights.output, config.hidden_size,
                      c.num_output_groups * c.output_lora_rank));
    if (ratio == 0) return {};
    TANDEM_TRY(matrix(name + "compressor", weights.compressor, pending_layout(config, ratio).width,
                      config.hidden_size));
    TANDEM_TRY(vector(name + "compressor_position_bias", weights.compressor_position_bias,
                      ratio * compressor_width(ratio, a.head_dim)));
    TANDEM_TRY(vector(name + "compressor_norm", weights.compressor_norm, a.head_dim));
    if (!has_indexer(ratio)) return {};
    TANDEM_TRY(vector(name + "index_position_bias", weights.index_position_bias,
                      ratio * compressor_width(ratio, c.index_head_dim)));
    TANDEM_TRY(vector(name + "index_norm", weights.index_norm, c.index_head_dim));
    TANDEM_TRY(matrix(name + "index_query", weights.index_query, c.index_num_heads * c.index_head_dim,
                      a.q_lora_rank));
    return matrix(name + "index_head_weights", weights.index_head_weights, c.index_num_heads,
                  config.hidden_size);
  }

  Status connection(const std::string& name, const ModelConfig& config, uint32_t mixes, uint32_t scales,
                    const HyperConnectionWeights& weights) const {
    const uint32_t streams = config.hyper_connections.num_streams;
    if (streams == 1) return {};
    TANDEM_TRY(vector(name + ".mix", weights.mix, mixes * streams * config.hidden_size));
    TANDEM_TRY(vector(name + ".base", weights.base, mixes));
    return vector(name + ".scale", weights.scale, scales);
  }

  Status draft(const ModelConfig& config, const DraftWeights& weights) const {
    return config.draft.kind == DraftKind::dspark ? dspark(config, weights) : mtp(config, weights);
  }

  Status dspark(const ModelConfig& config, const DraftWeights& weights) const {
    const uint32_t hidden = config.hidden_size, rank = config.draft.markov_rank;
    const auto taps = static_cast<uint32_t>(config.draft.target_layers.size());
    TANDEM_TRY(matrix("draft.tap_projection", weights.tap_projection, hidden, taps * hidden));
    TANDEM_TRY(vector("draft.tap_norm", weights.tap_norm, hidden));
    TANDEM_TRY(connection("draft.head_connection", config, config.hyper_connections.num_streams, 1,
                          weights.head_connection));
    TANDEM_TRY(vector("draft.head_norm", weights.head_norm, hidden));
    const size_t looked_up =
        format == PackFormat::f32 ? weights.markov_in_f32.size() : weights.markov_in_bf16.size();
    if (looked_up != size_t{config.vocab_size} * rank) {
      return differs("draft.markov_in", std::to_string(looked_up) + " values",
                     shape_text(config.vocab_size, rank));
    }
    TANDEM_TRY(matrix("draft.markov_out", weights.markov_out, config.vocab_size, rank));
    return vector("draft.confidence", weights.confidence, hidden + rank);
  }

  Status mtp(const ModelConfig& config, const DraftWeights& weights) const {
    TANDEM_TRY(vector("draft.embedding_norm", weights.embedding_norm, config.hidden_size));
    TANDEM_TRY(vector("draft.hidden_norm", weights.hidden_norm, config.hidden_size));
    const uint32_t streams = config.hyper_connections.num_streams, hidden = config.hidden_size;
    if (streams == 1) {
      TANDEM_TRY(matrix("draft.join", weights.join, hidden, 2 * hidden));
    } else {
      TANDEM_TRY(matrix("draft.embedding_projection", weights.embedding_projection, hidden, hidden));
      TANDEM_TRY(heads("draft.hidden_projection", weights.hidden_projection, streams, hidden, hidden));
      TANDEM_TRY(connection("draft.head_connection", config, streams, 1, weights.head_connection));
    }
    return vector("draft.head_norm", weights.head_norm, config.hidden_size);
  }

  Status layer(const std::string& name, const ModelConfig& config, uint32_t index,
               const LayerWeights& weights) const {
    const uint32_t streams = config.hyper_connections.num_streams, mixes = streams * (2 + streams);
    TANDEM_TRY(connection(name + "attention_connection", config, mixes, 3, weights.attention_connection));
    TANDEM_TRY(connection(name + "ffn_connection", config, mixes, 3, weights.ffn_connection));
    switch (config.attention.kind) {
      case AttentionKind::gqa:
        return gqa(name, config, weights.attention);
      case AttentionKind::mla:
        return mla(name, config, weights.attention);
      case AttentionKind::compressed:
        return compressed(name, config, config.compressed.ratios[index], weights.attention);
    }
    return {};
  }
};

// What the kernels take.
Status check_compressed(const ModelConfig& config) {
  const CompressedAttentionConfig& c = config.compressed;
  const auto most = [](const std::string& name, uint32_t is, uint32_t bound) -> Status {
    if (is <= bound) return {};
    return make_error(ErrorCode::unsupported, name + " " + std::to_string(is) + ": at most " +
                                                  std::to_string(bound) + " is implemented");
  };
  TANDEM_TRY(most("residual streams", config.hyper_connections.num_streams, kMostStreams));
  TANDEM_TRY(most("head_dim", config.attention.head_dim, kMostEntryDim));
  if (c.ratios.size() < config.num_layers) {
    return differs("compression ratios", std::to_string(c.ratios.size()) + " values",
                   std::to_string(config.num_layers));
  }
  for (uint32_t layer = 0; layer < config.num_layers; ++layer) {
    const uint32_t ratio = c.ratios[layer];
    if (ratio != 0 && ratio != kSparseRatio && ratio != kHeavyRatio) {
      return make_error(ErrorCode::unsupported, "compression ratio " + std::to_string(ratio) + " of layer " +
                                                    std::to_string(layer) + ": 0, 4 and 128 are implemented");
    }
    if (ratio == 0) continue;
    const uint32_t narrowest = has_indexer(ratio) ? std::min(c.index_head_dim, config.attention.head_dim)
                                                  : config.attention.head_dim;
    if (c.rope.dim == 0 || c.rope.dim > narrowest || c.rope.dim % 2 != 0) {
      return make_error(ErrorCode::internal, "rope dim " + std::to_string(c.rope.dim) +
                                                 " of layers with entries where a key has " +
                                                 std::to_string(narrowest) + " values to rotate");
    }
    if (!has_indexer(ratio)) continue;
    TANDEM_TRY(most("index heads", c.index_num_heads, kMostIndexHeads));
    TANDEM_TRY(most("index head_dim", c.index_head_dim, kMostIndexDim));
    TANDEM_TRY(most("index top_k", c.index_top_k, kMostIndexTopK));
  }
  return {};
}

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
  if (weights.layers.size() != config.total_layers()) {
    return differs("layers", std::to_string(weights.layers.size()), std::to_string(config.total_layers()));
  }
  if (config.num_draft_layers > 0) TANDEM_TRY(check.draft(config, weights.draft));
  const uint32_t rotated = config.attention.kind == AttentionKind::mla ? config.attention.qk_rope_head_dim
                                                                       : config.attention.head_dim;
  if (config.attention.rope.dim == 0 || config.attention.rope.dim > rotated ||
      config.attention.rope.dim % 2 != 0) {
    return make_error(ErrorCode::internal, "rope dim " + std::to_string(config.attention.rope.dim) +
                                               " where a head has " + std::to_string(rotated) +
                                               " values to rotate");
  }
  if (config.attention.kind == AttentionKind::compressed) TANDEM_TRY(check_compressed(config));
  TANDEM_TRY(check.connection("head_connection", config, config.hyper_connections.num_streams, 1,
                              weights.head_connection));
  for (uint32_t layer = 0; layer < config.total_layers(); ++layer) {
    const std::string name = "layers." + std::to_string(layer) + ".";
    const AttentionWeights& attention = weights.layers[layer].attention;
    TANDEM_TRY(check.vector(name + "input_norm", attention.input_norm, config.hidden_size));
    TANDEM_TRY(check.vector(name + "post_attention_norm", attention.post_attention_norm, config.hidden_size));
    TANDEM_TRY(check.layer(name, config, layer, weights.layers[layer]));
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
