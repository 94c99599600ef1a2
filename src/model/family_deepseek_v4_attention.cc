// Names and shapes of DeepSeek-V4's attention side, as the released files write them.
#include <string>
#include <utility>

#include "model/family_deepseek_v4.h"

namespace tandem {
namespace {

constexpr WeightRole kRole = WeightRole::attention;

void plan_connection(const ModelConfig& config, LoadPlan& plan, HyperConnectionWeights& weights,
                     const std::string& name, uint32_t mixes, uint32_t scales) {
  const uint64_t width = uint64_t{config.hyper_connections.num_streams} * config.hidden_size;
  plan.values(weights.mix, kRole, name + "_fn", {mixes, width}, DType::f32);
  plan.vector(weights.base, kRole, name + "_base", mixes, DType::f32);
  plan.vector(weights.scale, kRole, name + "_scale", scales, DType::f32);
}

// One compressor's tensors; its rows of keys and scores are appended to `rows`.
void plan_compressor(const ModelConfig& config, LoadPlan& plan, const std::string& name, uint32_t ratio,
                     uint32_t dim, std::vector<SourceRows>& rows, std::vector<float>& position_bias,
                     std::vector<float>& norm) {
  const uint32_t width = compressor_width(ratio, dim);
  for (const char* part : {"wkv.weight", "wgate.weight"}) {
    // Stored as bf16 in fp8 releases too.
    rows.push_back({plan.claim(name + part, {width, config.hidden_size}, kRole), 0, width});
  }
  plan.values(position_bias, kRole, name + "ape", {ratio, width}, DType::f32);
  plan.vector(norm, WeightRole::norm, name + "norm.weight", dim);
}

void plan_attention(const ModelConfig& config, LoadPlan& plan, const std::string& name, uint32_t ratio,
                    AttentionWeights& w) {
  const AttentionConfig& a = config.attention;
  const CompressedAttentionConfig& c = config.compressed;
  const uint32_t hidden = config.hidden_size;
  plan.matrix(w.q_a, kRole, name + "wq_a.weight", a.q_lora_rank, hidden);
  plan.vector(w.q_a_norm, WeightRole::norm, name + "q_norm.weight", a.q_lora_rank);
  plan.matrix(w.q_b, kRole, name + "wq_b.weight", a.num_heads * a.head_dim, a.q_lora_rank);
  plan.matrix(w.kv_a, kRole, name + "wkv.weight", a.head_dim, hidden);
  plan.vector(w.kv_a_norm, WeightRole::norm, name + "kv_norm.weight", a.head_dim);
  plan.vector(w.sinks, kRole, name + "attn_sink", a.num_heads, DType::f32);

  // The groups' matrices lie one below the other.
  const uint32_t group_width = a.num_heads * a.head_dim / c.num_output_groups;
  const size_t groups =
      plan.claim(name + "wo_a.weight", {c.num_output_groups * c.output_lora_rank, group_width}, kRole, true);
  w.output_groups.resize(c.num_output_groups);
  for (uint32_t group = 0; group < c.num_output_groups; ++group) {
    plan.pack(w.output_groups[group], kRole, PackArrangement::plain,
              {{groups, uint64_t{group} * c.output_lora_rank, c.output_lora_rank}}, group_width);
  }
  plan.matrix(w.output, kRole, name + "wo_b.weight", hidden, c.num_output_groups * c.output_lora_rank);

  if (ratio == 0) return;
  std::vector<SourceRows> rows;
  plan_compressor(config, plan, name + "compressor.", ratio, a.head_dim, rows, w.compressor_position_bias,
                  w.compressor_norm);
  if (has_indexer(ratio)) {
    const std::string indexer = name + "indexer.";
    plan_compressor(config, plan, indexer + "compressor.", ratio, c.index_head_dim, rows,
                    w.index_position_bias, w.index_norm);
    plan.matrix(w.index_query, kRole, indexer + "wq_b.weight", c.index_num_heads * c.index_head_dim,
                a.q_lora_rank);
    const size_t heads = plan.claim(indexer + "weights_proj.weight", {c.index_num_heads, hidden}, kRole);
    plan.pack(w.index_head_weights, kRole, PackArrangement::plain, {{heads, 0, c.index_num_heads}}, hidden);
  }
  plan.pack(w.compressor, kRole, PackArrangement::plain, std::move(rows), hidden);
}

// What multi-token prediction has beside a layer. Embedding and head are the model's.
void plan_mtp(const ModelConfig& config, LoadPlan& plan, const std::string& prefix, DraftWeights& weights) {
  const uint32_t hidden = config.hidden_size;
  plan.vector(weights.embedding_norm, WeightRole::norm, prefix + "enorm.weight", hidden);
  plan.vector(weights.hidden_norm, WeightRole::norm, prefix + "hnorm.weight", hidden);
  plan.matrix(weights.embedding_projection, kRole, prefix + "e_proj.weight", hidden, hidden);
  weights.hidden_projection.resize(config.hyper_connections.num_streams);
  plan.matrix(weights.hidden_projection.front(), kRole, prefix + "h_proj.weight", hidden, hidden);
  plan_connection(config, plan, weights.head_connection, prefix + "hc_head",
                  config.hyper_connections.num_streams, 1);
  plan.vector(weights.head_norm, WeightRole::norm, prefix + "norm.weight", hidden);
}

// What DSpark has beside its stages: in front of the first what reads the model's layers, behind the last
// the heads.
void plan_dspark(const ModelConfig& config, LoadPlan& plan, DraftWeights& weights) {
  const uint32_t hidden = config.hidden_size, rank = config.draft.markov_rank;
  const auto taps = static_cast<uint32_t>(config.draft.target_layers.size());
  const std::string first = "mtp.0.";
  plan.at_layer(config.num_layers);
  plan.matrix(weights.tap_projection, kRole, first + "main_proj.weight", hidden, taps * hidden);
  plan.vector(weights.tap_norm, WeightRole::norm, first + "main_norm.weight", hidden);
  const std::string last = "mtp." + std::to_string(config.draft.num_stages - 1) + ".";
  plan.at_layer(config.total_layers() - 1);
  plan_connection(config, plan, weights.head_connection, last + "hc_head",
                  config.hyper_connections.num_streams, 1);
  plan.vector(weights.head_norm, WeightRole::norm, last + "norm.weight", hidden);
  // The heads are bf16 in fp8 releases too.
  const std::vector<uint64_t> shape = {config.vocab_size, rank};
  plan.rows_of(weights.markov_in_f32, weights.markov_in_bf16,
               plan.claim(last + "markov_head.markov_w1.weight", shape, kRole));
  const size_t out = plan.claim(last + "markov_head.markov_w2.weight", shape, kRole);
  plan.pack(weights.markov_out, kRole, PackArrangement::plain, {{out, 0, config.vocab_size}}, rank);
  plan.values(weights.confidence, kRole, last + "confidence_head.proj.weight", {1, uint64_t{hidden} + rank});
}

}  // namespace

void plan_deepseek_v4_attention(const ModelConfig& config, LoadPlan& plan, const std::string& prefix,
                                uint32_t ratio, LayerWeights& layer) {
  const uint32_t streams = config.hyper_connections.num_streams, mixes = streams * (2 + streams);
  AttentionWeights& attention = layer.attention;
  plan.vector(attention.input_norm, WeightRole::norm, prefix + "attn_norm.weight", config.hidden_size);
  plan.vector(attention.post_attention_norm, WeightRole::norm, prefix + "ffn_norm.weight",
              config.hidden_size);
  plan_connection(config, plan, layer.attention_connection, prefix + "hc_attn", mixes, 3);
  plan_connection(config, plan, layer.ffn_connection, prefix + "hc_ffn", mixes, 3);
  plan_attention(config, plan, prefix + "attn.", ratio, attention);
}

void plan_deepseek_v4_attention(const ModelConfig& config, LoadPlan& plan, ModelWeights& weights) {
  plan.at_layer(0);
  plan_connection(config, plan, weights.head_connection, "hc_head", config.hyper_connections.num_streams, 1);
  for (uint32_t l = 0; l < config.num_layers; ++l) {
    plan.at_layer(l);
    plan_deepseek_v4_attention(config, plan, "layers." + std::to_string(l) + ".", config.compressed.ratios[l],
                               weights.layers[l]);
  }
  for (uint32_t stage = 0; stage < config.num_draft_layers; ++stage) {
    const uint32_t layer = config.num_layers + stage;
    const std::string prefix = "mtp." + std::to_string(stage) + ".";
    plan.at_layer(layer);
    plan_deepseek_v4_attention(config, plan, prefix, config.compressed.ratios[layer], weights.layers[layer]);
    if (config.draft.kind == DraftKind::mtp) plan_mtp(config, plan, prefix, weights.draft);
  }
  if (config.num_draft_layers > 0 && config.draft.kind == DraftKind::dspark)
    plan_dspark(config, plan, weights.draft);
}

}  // namespace tandem
