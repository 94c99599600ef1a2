#include "model/step_gqa.h"

#include <string>

#include "model/kv_groups.h"
#include "program/operations_attention.h"
#include "program/operations_basic.h"
#include "program/quantized_product.h"

namespace tandem {

GqaStep::GqaStep(ProgramBuilder& builder, const ModelConfig& config, const StepTensors& tensors)
    : config_(config), tensors_(tensors) {
  const AttentionConfig& attention = config.attention;
  const uint32_t query_width = attention.num_heads * attention.head_dim;
  const uint32_t key_width = attention.num_kv_heads * attention.head_dim;
  qkv_ = builder.tensor("attention.qkv", DType::f32, query_width + 2 * key_width);
  rotated_ = attention.per_head_qk_norm || attention.whole_qk_norm
                 ? builder.tensor("attention.query_key", DType::f32, query_width + key_width)
                 : qkv_;
  attended_ = builder.tensor("attention.attended", tensors.compute_dtype, query_width);
}

void GqaStep::append(ProgramBuilder& builder, uint32_t layer, const AttentionWeights& weights,
                     const StateCaches& caches) const {
  const uint32_t group = kv_group(config_, layer);
  const KvCacheView cache = caches.view(group, layer);
  const AttentionConfig& attention = config_.attention;
  const uint32_t head_dim = attention.head_dim;
  const uint32_t query_width = attention.num_heads * head_dim;
  const uint32_t key_width = attention.num_kv_heads * head_dim;
  const std::string name = "layers." + std::to_string(layer) + ".attention.";

  append_matmul(builder, name + "qkv", {.weights = {&weights.qkv, 1}, .in = tensors_.normed, .out = qkv_});
  if (attention.qkv_bias)
    builder.append(add_bias(name + "qkv_bias", qkv_, {weights.q_bias, weights.k_bias, weights.v_bias}));
  if (attention.per_head_qk_norm || attention.whole_qk_norm) {
    const bool whole = attention.whole_qk_norm;
    builder.append(rms_norm(name + "q_norm", {.in = qkv_,
                                              .heads = whole ? 1 : attention.num_heads,
                                              .cols = whole ? query_width : head_dim,
                                              .weight = weights.q_norm,
                                              .epsilon = config_.rms_norm_eps,
                                              .out = rotated_}));
    builder.append(rms_norm(name + "k_norm", {.in = qkv_,
                                              .in_column = query_width,
                                              .heads = whole ? 1 : attention.num_kv_heads,
                                              .cols = whole ? key_width : head_dim,
                                              .weight = weights.k_norm,
                                              .epsilon = config_.rms_norm_eps,
                                              .out = rotated_,
                                              .out_column = query_width}));
  }
  if (const float bound = attention.qkv_bound; bound != 0) {
    builder.append(clamp(name + "clamp_qk", rotated_, 0, query_width + key_width, bound));
    builder.append(clamp(name + "clamp_v", qkv_, query_width + key_width, key_width, bound));
  }
  // The heads of k follow those of q at the same distance: one rotation for both.
  builder.append(rope(name + "rope", {.x = rotated_,
                                      .heads = attention.num_heads + attention.num_kv_heads,
                                      .head_stride = head_dim,
                                      .table = tensors_.rope,
                                      .layout = attention.rope.layout}));
  builder.append(kv_write(name + "kv_write", {.cache = cache,
                                              .group = group,
                                              .first = rotated_,
                                              .first_column = query_width,
                                              .first_width = key_width,
                                              .second = qkv_,
                                              .second_column = query_width + key_width,
                                              .second_width = key_width,
                                              .num_kv_heads = attention.num_kv_heads}));
  builder.append(gqa(name + "gqa", {.cache = cache,
                                    .group = group,
                                    .query = rotated_,
                                    .out = attended_,
                                    .num_heads = attention.num_heads,
                                    .num_kv_heads = attention.num_kv_heads,
                                    .head_dim = head_dim,
                                    .scale = attention.softmax_scale,
                                    .window = attention.window(layer),
                                    .sinks = weights.sinks}));
  append_matmul(builder, name + "output",
                {.weights = {&weights.output, 1}, .in = attended_, .out = tensors_.branch});
  if (attention.output_bias)
    builder.append(add_bias(name + "output_bias", tensors_.branch, {weights.output_bias}));
}

}  // namespace tandem
