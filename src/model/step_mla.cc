#include "model/step_mla.h"

#include <string>

#include "program/operations_attention.h"
#include "program/operations_basic.h"
#include "program/quantized_product.h"

namespace tandem {
namespace {

// The norms of the low-rank query and of the latent keep this value whatever rms_norm_eps says: the models
// were trained with code that passes no epsilon to these two (Moonlight: 1e-5 elsewhere).
constexpr float kLatentNormEpsilon = 1e-6f;

}  // namespace

MlaSizes mla_sizes(const AttentionConfig& attention) {
  return {.num_heads = attention.num_heads,
          .latent_dim = attention.kv_lora_rank,
          .nope_dim = attention.qk_nope_head_dim,
          .rope_dim = attention.qk_rope_head_dim,
          .value_dim = attention.v_head_dim};
}

MlaStep::MlaStep(ProgramBuilder& builder, const ModelConfig& config, const StepTensors& tensors)
    : config_(config), sizes_(mla_sizes(config.attention)), tensors_(tensors) {
  const AttentionConfig& attention = config.attention;
  const DType compute = tensors.compute_dtype;
  const uint32_t heads = attention.num_heads;
  const uint32_t query_width = heads * (attention.qk_nope_head_dim + attention.qk_rope_head_dim);
  if (attention.q_lora_rank != 0) {
    query_low_ = builder.tensor("attention.query_low", DType::f32, attention.q_lora_rank);
    query_low_normed_ = builder.tensor("attention.query_low_normed", compute, attention.q_lora_rank);
  }
  query_ = builder.tensor("attention.query", DType::f32, query_width);
  query_rounded_ =
      compute == DType::f32 ? query_ : builder.tensor("attention.query_rounded", compute, query_width);
  kv_ = builder.tensor("attention.kv", DType::f32, attention.kv_lora_rank + attention.qk_rope_head_dim);
  latent_ = builder.tensor("attention.latent", DType::f32, attention.kv_lora_rank);
  query_latent_ = builder.tensor("attention.query_latent", DType::f32, heads * attention.kv_lora_rank);
  attended_ = builder.tensor("attention.attended", compute, heads * attention.kv_lora_rank);
  values_ = builder.tensor("attention.values", compute, heads * attention.v_head_dim);
  if (builder.ffn_traits().sum_mode != SumMode::deterministic)
    workspace_ = MlaWorkspace::plan(builder, sizes_, compute, config.max_position_embeddings);
}

void MlaStep::append(ProgramBuilder& builder, uint32_t layer, const AttentionWeights& weights,
                     const StateCaches& caches) const {
  const KvCacheView cache = caches.view(/*group=*/0, layer);
  const AttentionConfig& attention = config_.attention;
  const uint32_t nope = attention.qk_nope_head_dim;
  const uint32_t head_width = nope + attention.qk_rope_head_dim;
  const uint32_t latent_dim = attention.kv_lora_rank;
  const std::string name = "layers." + std::to_string(layer) + ".attention.";

  // Query.
  Tensor query_input = tensors_.normed;
  if (attention.q_lora_rank != 0) {
    append_matmul(builder, name + "q_a",
                  {.weights = {&weights.q_a, 1}, .in = tensors_.normed, .out = query_low_});
    builder.append(rms_norm(name + "q_a_norm", {.in = query_low_,
                                                .cols = attention.q_lora_rank,
                                                .weight = weights.q_a_norm,
                                                .epsilon = kLatentNormEpsilon,
                                                .out = query_low_normed_}));
    query_input = query_low_normed_;
  }
  append_matmul(builder, name + "q_b", {.weights = {&weights.q_b, 1}, .in = query_input, .out = query_});
  builder.append(rope(name + "q_rope", {.x = query_,
                                        .column = nope,
                                        .heads = attention.num_heads,
                                        .head_stride = head_width,
                                        .table = tensors_.rope,
                                        .layout = attention.rope.layout}));
  if (tensors_.compute_dtype != DType::f32) builder.append(convert(name + "q_round", query_, query_rounded_));

  // Latent and the shared rotated key part. Only the latent is normed.
  append_matmul(builder, name + "kv_a", {.weights = {&weights.kv_a, 1}, .in = tensors_.normed, .out = kv_});
  builder.append(rms_norm(name + "kv_a_norm", {.in = kv_,
                                               .cols = latent_dim,
                                               .weight = weights.kv_a_norm,
                                               .epsilon = kLatentNormEpsilon,
                                               .out = latent_}));
  builder.append(rope(
      name + "k_rope",
      {.x = kv_, .column = latent_dim, .heads = 1, .table = tensors_.rope, .layout = attention.rope.layout}));
  builder.append(kv_write(name + "kv_write", {.cache = cache,
                                              .first = latent_,
                                              .first_width = latent_dim,
                                              .second = kv_,
                                              .second_column = latent_dim,
                                              .second_width = attention.qk_rope_head_dim}));

  append_mla(builder, name,
             {.sizes = sizes_,
              .cache = cache,
              .key_absorb = weights.key_absorb,
              .key_expand = weights.key_expand,
              .value_absorb = weights.value_absorb,
              .workspace = workspace_,
              .query = query_,
              .query_rounded = query_rounded_,
              .query_latent = query_latent_,
              .attended = attended_,
              .values = values_,
              .scale = attention.softmax_scale});
  append_matmul(builder, name + "output",
                {.weights = {&weights.output, 1}, .in = values_, .out = tensors_.branch});
}

}  // namespace tandem
