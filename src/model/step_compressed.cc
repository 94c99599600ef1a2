#include "model/step_compressed.h"

#include <algorithm>

#include "program/operations_attention.h"
#include "program/operations_basic.h"
#include "program/operations_compressed.h"
#include "program/quantized_product.h"

namespace tandem {
namespace {

bool uses(const ModelConfig& config, uint32_t ratio) {
  for (uint32_t layer = 0; layer < config.num_layers; ++layer) {
    if (config.compressed.ratios[layer] == ratio) return true;
  }
  return false;
}

}  // namespace

CompressedStep::CompressedStep(ProgramBuilder& builder, const ModelConfig& config, const StepTensors& tensors)
    : config_(config), tensors_(tensors), groups_(compressed_groups(config)) {
  const AttentionConfig& a = config.attention;
  const CompressedAttentionConfig& c = config.compressed;
  const DType compute = tensors.compute_dtype;
  const bool sparse = uses(config, kSparseRatio), heavy = uses(config, kHeavyRatio);
  const auto table = [&](const std::string& name, uint32_t granule) {
    const Tensor out = builder.tensor(name, DType::f32, c.rope.dim);
    builder.append(rope_table(name, c.rope.inverse_frequencies(), c.rope.cos_sin_factor(), out, granule));
    return out;
  };
  if (sparse || heavy) compressed_rope_ = table("compressed_rope", 1);
  if (sparse) sparse_rope_ = table("sparse_entry_rope", kSparseRatio);
  if (heavy) heavy_rope_ = table("heavy_entry_rope", kHeavyRatio);

  const uint32_t query_width = a.num_heads * a.head_dim;
  query_low_ = builder.tensor("attention.query_low", DType::f32, a.q_lora_rank);
  query_low_normed_ = builder.tensor("attention.query_low_normed", compute, a.q_lora_rank);
  query_ = builder.tensor("attention.query", DType::f32, query_width);
  key_ = builder.tensor("attention.key", DType::f32, a.head_dim);
  if (sparse) {
    sparse_pending_ =
        builder.tensor("attention.sparse_pending", DType::f32, pending_layout(config, kSparseRatio).width);
    index_query_ = builder.tensor("attention.index_query", DType::f32, c.index_num_heads * c.index_head_dim);
    index_weights_ = builder.tensor("attention.index_weights", DType::f32, c.index_num_heads);
    selected_ = builder.tensor("attention.selected", DType::i32, c.index_top_k);
  }
  if (heavy) {
    heavy_pending_ =
        builder.tensor("attention.heavy_pending", DType::f32, pending_layout(config, kHeavyRatio).width);
  }
  attended_ = builder.tensor("attention.attended", DType::f32, query_width);
  attended_rounded_ =
      compute == DType::f32 ? attended_ : builder.tensor("attention.attended_rounded", compute, query_width);
  output_low_ = builder.tensor("attention.output_low", compute, c.num_output_groups * c.output_lora_rank);
}

void CompressedStep::append_query(ProgramBuilder& builder, const std::string& name, uint32_t ratio,
                                  const AttentionWeights& weights) const {
  const AttentionConfig& a = config_.attention;
  append_matmul(builder, name + "q_a",
                {.weights = {&weights.q_a, 1}, .in = tensors_.normed, .out = query_low_});
  builder.append(rms_norm(name + "q_a_norm", {.in = query_low_,
                                              .cols = a.q_lora_rank,
                                              .weight = weights.q_a_norm,
                                              .epsilon = config_.rms_norm_eps,
                                              .out = query_low_normed_}));
  append_matmul(builder, name + "q_b",
                {.weights = {&weights.q_b, 1}, .in = query_low_normed_, .out = query_});
  // Each head by itself, without a weight; in place.
  builder.append(rms_norm(name + "q_norm", {.in = query_,
                                            .heads = a.num_heads,
                                            .cols = a.head_dim,
                                            .weight = {},
                                            .epsilon = config_.rms_norm_eps,
                                            .out = query_}));
  const Tensor& table = rope_of(ratio);
  builder.append(rope(name + "q_rope", {.x = query_,
                                        .column = a.head_dim - table.cols,
                                        .heads = a.num_heads,
                                        .head_stride = a.head_dim,
                                        .table = table,
                                        .layout = RopeLayout::interleaved}));
}

void append_window_key(ProgramBuilder& builder, const ModelConfig& config, const StepTensors& tensors,
                       const WindowKeySpec& spec, const AttentionWeights& weights,
                       const StateCaches& caches) {
  const uint32_t head_dim = config.attention.head_dim;
  const uint32_t group = compressed_groups(config).window;
  append_matmul(builder, spec.name + "kv", {.weights = {&weights.kv_a, 1}, .in = spec.in, .out = spec.key});
  builder.append(rms_norm(spec.name + "kv_norm", {.in = spec.key,
                                                  .cols = head_dim,
                                                  .weight = weights.kv_a_norm,
                                                  .epsilon = config.rms_norm_eps,
                                                  .out = spec.key}));
  builder.append(rope(spec.name + "kv_rope", {.x = spec.key,
                                              .column = head_dim - spec.rope.cols,
                                              .heads = 1,
                                              .head_stride = head_dim,
                                              .table = spec.rope,
                                              .layout = RopeLayout::interleaved}));
  if (tensors.rounds_as_trained) {
    builder.append(
        trained_rounding(spec.name + "kv_trained_rounding", {.x = spec.key,
                                                             .head_stride = head_dim,
                                                             .cols = head_dim - spec.rope.cols,
                                                             .kind = TrainedRounding::fp8,
                                                             .narrow = tensors.compute_dtype != DType::f32}));
  }
  builder.append(kv_write(spec.name + "kv_write", {.cache = caches.view(group, spec.layer),
                                                   .group = group,
                                                   .first = spec.key,
                                                   .first_width = head_dim,
                                                   .second = spec.key,
                                                   .second_width = 0}));
}

void CompressedStep::append_entries(ProgramBuilder& builder, const std::string& name, uint32_t layer,
                                    uint32_t ratio, const AttentionWeights& weights,
                                    const StateCaches& caches) const {
  const PendingLayout layout = pending_layout(config_, ratio);
  const bool sparse = has_indexer(ratio);
  const Tensor& pending = sparse ? sparse_pending_ : heavy_pending_;
  append_matmul(builder, name + "compressor",
                {.weights = {&weights.compressor, 1}, .in = tensors_.normed, .out = pending});
  builder.append(kv_write(name + "pending_write", {.cache = caches.view(groups_.pending(ratio), layer),
                                                   .group = groups_.pending(ratio),
                                                   .first = pending,
                                                   .first_width = layout.width,
                                                   .second = pending,
                                                   .second_width = 0}));
  CompressSpec spec;
  spec.pending = caches.view(groups_.pending(ratio), layer);
  spec.pending_group = groups_.pending(ratio);
  spec.pending_width = layout.width;
  spec.keys_offset = layout.keys;
  spec.scores_offset = layout.scores;
  spec.position_bias = weights.compressor_position_bias;
  spec.norm = weights.compressor_norm;
  spec.epsilon = config_.rms_norm_eps;
  spec.rope = sparse ? sparse_rope_ : heavy_rope_;
  spec.entries = caches.view(groups_.entries(ratio), layer);
  spec.entries_group = groups_.entries(ratio);
  spec.ratio = ratio;
  spec.dim = config_.attention.head_dim;
  spec.overlap = sparse;
  if (tensors_.rounds_as_trained) spec.rounding = TrainedRounding::fp8;
  builder.append(compress(name + "compress", spec));
  if (!sparse) return;
  spec.keys_offset = layout.index_keys;
  spec.scores_offset = layout.index_scores;
  spec.position_bias = weights.index_position_bias;
  spec.norm = weights.index_norm;
  spec.entry_offset = index_key_offset(config_);
  if (tensors_.rounds_as_trained) spec.rounding = TrainedRounding::hadamard_fp4;
  spec.dim = config_.compressed.index_head_dim;
  builder.append(compress(name + "index_compress", spec));
}

void CompressedStep::append_choice(ProgramBuilder& builder, const std::string& name, uint32_t layer,
                                   const AttentionWeights& weights, const StateCaches& caches) const {
  const CompressedAttentionConfig& c = config_.compressed;
  append_matmul(builder, name + "index_query",
                {.weights = {&weights.index_query, 1}, .in = query_low_normed_, .out = index_query_});
  builder.append(rope(name + "index_rope", {.x = index_query_,
                                            .column = c.index_head_dim - compressed_rope_.cols,
                                            .heads = c.index_num_heads,
                                            .head_stride = c.index_head_dim,
                                            .table = compressed_rope_,
                                            .layout = RopeLayout::interleaved}));
  if (tensors_.rounds_as_trained) {
    builder.append(
        trained_rounding(name + "index_trained_rounding", {.x = index_query_,
                                                           .heads = c.index_num_heads,
                                                           .head_stride = c.index_head_dim,
                                                           .cols = c.index_head_dim,
                                                           .kind = TrainedRounding::hadamard_fp4,
                                                           .narrow = tensors_.compute_dtype != DType::f32}));
  }
  append_matmul(builder, name + "index_weights",
                {.weights = {&weights.index_head_weights, 1}, .in = tensors_.normed, .out = index_weights_});
  builder.append(index_select(name + "index_select", {.entries = caches.view(groups_.csa_entries, layer),
                                                      .group = groups_.csa_entries,
                                                      .key_offset = index_key_offset(config_),
                                                      .ratio = kSparseRatio,
                                                      .heads = c.index_num_heads,
                                                      .dim = c.index_head_dim,
                                                      .query = index_query_,
                                                      .weights = index_weights_,
                                                      .selected = selected_}));
}

void CompressedStep::append_output(ProgramBuilder& builder, const std::string& name, uint32_t ratio,
                                   const AttentionWeights& weights) const {
  const AttentionConfig& a = config_.attention;
  const CompressedAttentionConfig& c = config_.compressed;
  // Values were rotated as keys are: turned back by the query's angles, what is left depends on distances.
  const Tensor& table = rope_of(ratio);
  builder.append(rope(name + "inverse_rope", {.x = attended_,
                                              .column = a.head_dim - table.cols,
                                              .heads = a.num_heads,
                                              .head_stride = a.head_dim,
                                              .table = table,
                                              .layout = RopeLayout::interleaved,
                                              .inverse = true}));
  if (tensors_.compute_dtype != DType::f32)
    builder.append(convert(name + "attended_round", attended_, attended_rounded_));
  append_matmul(builder, name + "output_groups",
                {.weights = weights.output_groups,
                 .in = attended_rounded_,
                 .in_batch_stride = a.num_heads * a.head_dim / c.num_output_groups,
                 .out = output_low_,
                 .out_batch_stride = c.output_lora_rank});
  append_matmul(builder, name + "output",
                {.weights = {&weights.output, 1}, .in = output_low_, .out = tensors_.branch});
}

void CompressedStep::append(ProgramBuilder& builder, uint32_t layer, const AttentionWeights& weights,
                            const StateCaches& caches) const {
  const uint32_t ratio = config_.compressed.ratios[layer];
  const std::string name = "layers." + std::to_string(layer) + ".attention.";
  append_query(builder, name, ratio, weights);
  append_window_key(
      builder, config_, tensors_,
      {.name = name, .layer = layer, .in = tensors_.normed, .key = key_, .rope = rope_of(ratio)}, weights,
      caches);
  if (ratio != 0) append_entries(builder, name, layer, ratio, weights, caches);
  if (has_indexer(ratio)) append_choice(builder, name, layer, weights, caches);
  CompressedAttentionSpec spec;
  spec.window_cache = caches.view(groups_.window, layer);
  spec.window_group = groups_.window;
  spec.window = config_.compressed.window;
  spec.ranged = tensors_.sees_key_ranges;
  spec.ratio = ratio;
  if (ratio != 0) {
    spec.entries = caches.view(groups_.entries(ratio), layer);
    spec.entries_group = groups_.entries(ratio);
  }
  if (has_indexer(ratio)) spec.selected = selected_;
  spec.query = query_;
  spec.sinks = weights.sinks;
  spec.out = attended_;
  spec.num_heads = config_.attention.num_heads;
  spec.head_dim = config_.attention.head_dim;
  spec.scale = config_.attention.softmax_scale;
  builder.append(compressed_attention(name + "attention", spec));
  append_output(builder, name, ratio, weights);
}

}  // namespace tandem
