#include "bench/step_cost.h"

#include <algorithm>

#include "model/compressed_shape.h"
#include "model/step_mla.h"

namespace tandem::bench {
namespace {

constexpr double kCacheElement = 2;  // bytes of DeepSeek-V4's keys and entries: bf16

struct AttentionCost {
  double bytes = 0, flops = 0;
};

// A layer that sees every key, or with a window the last ones: of each that any row sees its block's share is
// read, `flops_a_key` computed.
AttentionCost full_attention(const StepRows& rows, const PagedKvLayout& kv, double flops_a_key,
                             uint32_t window = 0) {
  const auto keys_of = [&](uint32_t position, uint32_t more) {  // its own included
    const double keys = static_cast<double>(position) + 1;
    return window == 0 ? keys : std::min(keys, static_cast<double>(window) + more);
  };
  AttentionCost cost;
  cost.bytes = keys_of(rows.begin + rows.rows - 1, rows.rows - 1) * static_cast<double>(kv.block_bytes()) /
               kv.tokens_per_block;
  for (uint32_t r = 0; r < rows.rows; ++r) cost.flops += keys_of(rows.begin + r, 0) * flops_a_key;
  return cost;
}

// Latent attention. The weights' products of a row are those of the absorbed form; where a sequence is
// expanded, its keys' products take their place.
AttentionCost latent_attention(const ModelConfig& config, const StepRows& rows, const PagedKvLayout& kv) {
  const AttentionConfig& a = config.attention;
  const MlaSizes sizes = mla_sizes(a);
  const DType dtype = kv.dtype == DType::f32 ? DType::f32 : DType::bf16;
  const MlaWorkspace workspace{
      .offset = 0, .bytes = MlaWorkspace::bytes_for(sizes, dtype, config.max_position_embeddings)};
  const uint32_t keys = rows.begin + rows.rows;
  if (!expands_mla(sizes, rows.rows, keys, workspace.heads(sizes, dtype, keys)))
    return full_attention(rows, kv, 2.0 * a.num_heads * (2.0 * a.kv_lora_rank + a.qk_rope_head_dim));
  AttentionCost cost = full_attention(rows, kv, 2.0 * a.num_heads * sizes.expanded_width());
  // Those before the step's rows; of the rows themselves the absorbed products are as many.
  cost.flops += 2.0 * rows.begin * a.num_heads * (sizes.nope_dim + sizes.value_dim) * sizes.latent_dim;
  return cost;
}

// A layer of DeepSeek-V4: the window, and entries of `ratio` tokens each.
AttentionCost compressed_attention(const ModelConfig& config, uint32_t ratio, const StepRows& rows) {
  const AttentionConfig& attention = config.attention;
  const CompressedAttentionConfig& compressed = config.compressed;
  const double flops_a_key = 4.0 * attention.num_heads * attention.head_dim;
  const double index_flops = 2.0 * compressed.index_num_heads * compressed.index_head_dim;
  const uint32_t end = rows.begin + rows.rows;
  AttentionCost cost;
  double most_taken = 0;
  for (uint32_t position = rows.begin; position < end; ++position) {
    double keys = std::min(position + 1, compressed.window);
    const uint32_t seen = ratio == 0 ? 0 : (position + 1) / ratio;
    const bool selects = ratio == kSparseRatio && seen > compressed.index_top_k;
    keys += selects ? compressed.index_top_k : seen;
    if (selects) cost.flops += seen * index_flops;
    cost.flops += keys * flops_a_key;
    most_taken = selects ? compressed.index_top_k : seen;
  }
  const uint32_t seen = ratio == 0 ? 0 : end / ratio;
  const bool selects = ratio == kSparseRatio && seen > compressed.index_top_k;
  // One row takes its entries; several may choose among all.
  const double entries = rows.rows == 1 ? most_taken : seen;
  const double window = std::min(end, compressed.window + rows.rows - 1);
  cost.bytes = ((window + entries) * attention.head_dim +
                (selects ? static_cast<double>(seen) * compressed.index_head_dim : 0)) *
               kCacheElement;
  return cost;
}

AttentionCost layer_attention(const ModelConfig& config, const PagedKvLayout& kv, uint32_t layer,
                              const StepRows& rows) {
  const AttentionConfig& attention = config.attention;
  switch (attention.kind) {
    case AttentionKind::gqa:
      return full_attention(rows, kv, 4.0 * attention.num_heads * attention.head_dim,
                            attention.window(layer));
    case AttentionKind::mla:
      return latent_attention(config, rows, kv);
    case AttentionKind::compressed:
      return compressed_attention(config, config.compressed.ratios[layer], rows);
  }
  return {};
}

}  // namespace

double StepCost::least_seconds(double read_roof, double flop_roof) const {
  const auto part = [&](double bytes, double operations) {
    return std::max(bytes / read_roof, operations / flop_roof);
  };
  const std::array<double, 6> weights = {attention, dense, router, shared_experts, experts, head};
  double seconds = part(kv, kv_flops) + embedding / read_roof;
  for (size_t i = 0; i < weights.size(); ++i) seconds += part(weights[i], weight_flops[i]);
  return seconds;
}

StepCost step_cost(const ModelConfig& config, const RandomModel& model, const PagedKvLayout& kv,
                   std::span<const StepRows> sequences, uint32_t logit_rows, uint64_t experts_read,
                   uint64_t expert_rows) {
  StepCost cost;
  const auto bytes = [&](WeightRole role) { return static_cast<double>(model.bytes(role)); };
  cost.attention = bytes(WeightRole::attention) + bytes(WeightRole::norm);
  cost.dense = bytes(WeightRole::dense);
  cost.router = bytes(WeightRole::router);
  cost.shared_experts = bytes(WeightRole::shared_experts);
  cost.experts = static_cast<double>(experts_read) * static_cast<double>(model.expert_bytes);
  cost.head = logit_rows == 0 ? 0 : bytes(WeightRole::head);
  double rows = 0;
  for (const StepRows& sequence : sequences) {
    rows += sequence.rows;
    for (uint32_t layer = 0; layer < config.num_layers; ++layer) {
      const AttentionCost attention = layer_attention(config, kv, layer, sequence);
      cost.kv += attention.bytes;
      cost.kv_flops += attention.flops;
    }
  }
  cost.embedding = rows * config.hidden_size * sizeof(uint16_t);
  const auto flops = [&](WeightRole role) { return rows * model.flops(role); };
  cost.weight_flops = {
      flops(WeightRole::attention),
      flops(WeightRole::dense),
      flops(WeightRole::router),
      flops(WeightRole::shared_experts),
      6.0 * config.hidden_size * config.moe_intermediate_size * static_cast<double>(expert_rows),
      logit_rows * model.flops(WeightRole::head)};
  cost.flops = cost.kv_flops;
  for (const double part : cost.weight_flops) cost.flops += part;
  return cost;
}

}  // namespace tandem::bench
