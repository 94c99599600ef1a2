#include "model/step_gqa.h"

#include <string>

#include "program/operations_attention.h"
#include "program/operations_basic.h"

namespace tandem {

GqaStep::GqaStep(ProgramBuilder& builder, const ModelConfig& config, const StepTensors& tensors)
    : config_(config), tensors_(tensors) {
  const AttentionConfig& attention = config.attention;
  const uint32_t query_width = attention.num_heads * attention.head_dim;
  const uint32_t key_width = attention.num_kv_heads * attention.head_dim;
  qkv_ = builder.tensor("attention.qkv", DType::f32, query_width + 2 * key_width);
  query_ = key_ = qkv_;
  if (attention.per_head_qk_norm) {
    query_ = builder.tensor("attention.query", DType::f32, query_width);
    key_ = builder.tensor("attention.key", DType::f32, key_width);
  }
  attended_ = builder.tensor("attention.attended", tensors.compute_dtype, query_width);
}

void GqaStep::append(ProgramBuilder& builder, uint32_t layer, const AttentionWeights& weights,
                     const KvCacheView& cache) const {
  const AttentionConfig& attention = config_.attention;
  const uint32_t head_dim = attention.head_dim;
  const uint32_t query_width = attention.num_heads * head_dim;
  const uint32_t key_width = attention.num_kv_heads * head_dim;
  const bool normed_heads = attention.per_head_qk_norm;
  const uint32_t key_column = normed_heads ? 0 : query_width;
  const std::string name = "layers." + std::to_string(layer) + ".attention.";

  builder.append(matmul(name + "qkv", {.weights = {&weights.qkv, 1}, .in = tensors_.normed, .out = qkv_}));
  if (normed_heads) {
    builder.append(rms_norm(name + "q_norm", {.in = qkv_,
                                              .heads = attention.num_heads,
                                              .cols = head_dim,
                                              .weight = weights.q_norm,
                                              .epsilon = config_.rms_norm_eps,
                                              .out = query_}));
    builder.append(rms_norm(name + "k_norm", {.in = qkv_,
                                              .in_column = query_width,
                                              .heads = attention.num_kv_heads,
                                              .cols = head_dim,
                                              .weight = weights.k_norm,
                                              .epsilon = config_.rms_norm_eps,
                                              .out = key_}));
  }
  builder.append(rope(name + "q_rope", {.x = query_,
                                        .heads = attention.num_heads,
                                        .head_stride = head_dim,
                                        .table = tensors_.rope,
                                        .layout = attention.rope.layout}));
  builder.append(rope(name + "k_rope", {.x = key_,
                                        .column = key_column,
                                        .heads = attention.num_kv_heads,
                                        .head_stride = head_dim,
                                        .table = tensors_.rope,
                                        .layout = attention.rope.layout}));
  builder.append(kv_write(name + "kv_write", {.cache = cache,
                                              .first = key_,
                                              .first_column = key_column,
                                              .first_width = key_width,
                                              .second = qkv_,
                                              .second_column = query_width + key_width,
                                              .second_width = key_width,
                                              .num_kv_heads = attention.num_kv_heads}));
  builder.append(gqa(name + "gqa", {.cache = cache,
                                    .query = query_,
                                    .out = attended_,
                                    .num_heads = attention.num_heads,
                                    .num_kv_heads = attention.num_kv_heads,
                                    .head_dim = head_dim,
                                    .scale = attention.softmax_scale}));
  builder.append(
      matmul(name + "output", {.weights = {&weights.output, 1}, .in = attended_, .out = tensors_.branch}));
}

}  // namespace tandem
