#include "model/load_plan.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <utility>

#include "checkpoint/matrix_reader.h"
#include "model/families.h"

namespace tandem {

std::string_view weight_role_name(WeightRole role) {
  constexpr std::array<std::string_view, kWeightRoles> kNames = {
      "embedding", "head", "norm", "attention", "dense", "router", "experts", "shared_experts"};
  return kNames[static_cast<size_t>(role)];
}

bool is_held(WeightRole role, const HeldParts& held) {
  switch (role) {
    case WeightRole::router:
      return held.router;
    case WeightRole::experts:
      return held.experts;
    case WeightRole::shared_experts:
      return held.shared_experts;
    default:
      return held.attention;
  }
}

namespace {

bool is_held(WeightRole role, uint32_t expert, const HeldParts& held) {
  return is_held(role, held) && (expert == kNoExpert || held.share.contains(expert));
}

// Rows [begin, end) of sources that lie one below the other.
void append_rows(const std::vector<SourceRows>& sources, uint64_t begin, uint64_t end,
                 std::vector<SourceRows>& out) {
  uint64_t first = 0;
  for (const SourceRows& source : sources) {
    const uint64_t from = std::max(begin, first), to = std::min(end, first + source.count);
    if (from < to) out.push_back({source.claim, source.begin + from - first, to - from, source.col_begin});
    first += source.count;
  }
}

}  // namespace

PackItem held_part(const PackItem& item, const HeldParts& held) {
  if (item.role != WeightRole::experts || item.expert == kNoExpert) return item;
  PackItem part = item;
  if (item.arrangement == PackArrangement::gate_up) {
    const uint32_t intermediate = item.rows / 2;
    const RowRange rows = held.share.rows.within(intermediate);
    part.rows = 2 * rows.size();
    part.sources.clear();
    for (const uint32_t half : {0u, intermediate})  // gate, then up
      append_rows(item.sources, half + rows.begin, half + rows.end, part.sources);
  } else {
    const RowRange rows = held.share.rows.within(item.cols);
    part.col_begin = rows.begin;
    part.cols = rows.size();
  }
  return part;
}

bool is_held(const TensorClaim& claim, const HeldParts& held) {
  return is_held(claim.role, claim.expert, held);
}
bool is_held(const PackItem& item, const HeldParts& held) {
  return is_held(item.role, item.expert, held);
}

uint64_t TensorClaim::elements() const {
  uint64_t count = 1;
  for (const uint64_t dim : shape) count *= dim;
  return fp4_cols == 0 ? count : count * 2;
}

size_t LoadPlan::claim(std::string tensor, std::vector<uint64_t> shape, WeightRole role, bool block_quantized,
                       DType released) {
  [[maybe_unused]] const bool inserted = by_name_.emplace(tensor, claims_.size()).second;
  assert(inserted);
  claims_.push_back({.tensor = std::move(tensor),
                     .shape = std::move(shape),
                     .role = role,
                     .block_quantized = block_quantized,
                     .expert = expert_,
                     .released = released,
                     .when_missing = {}});
  return claims_.size() - 1;
}

size_t LoadPlan::claim_fp4_blocks(std::string tensor, uint32_t experts, uint32_t rows, uint32_t cols,
                                  uint64_t seen_cols) {
  const size_t index = claim(std::move(tensor), {experts, rows, cols / kFp4BlockCols, kFp4BlockCols / 2},
                             WeightRole::experts, false, DType::u8);
  claims_[index].fp4_cols = seen_cols;
  return index;
}

size_t LoadPlan::claim_turned(std::string tensor, uint32_t experts, uint32_t rows, uint32_t cols,
                              bool interleaved) {
  const size_t index = claim(std::move(tensor), {experts, cols, rows}, WeightRole::experts);
  claims_[index].turned = true;
  claims_[index].interleaved = interleaved;
  return index;
}

void LoadPlan::expert_bias(std::vector<float>& out, size_t claim, uint32_t intermediate) {
  expert_biases_.push_back({claim, expert_, intermediate, &out});
}

const TensorClaim* LoadPlan::find(std::string_view tensor) const {
  const auto it = by_name_.find(std::string(tensor));
  return it == by_name_.end() ? nullptr : &claims_[it->second];
}

void LoadPlan::pack(PackedWeight& out, WeightRole role, PackArrangement arrangement,
                    std::vector<SourceRows> sources, uint32_t cols) {
  uint64_t rows = 0;
  for (const SourceRows& source : sources) rows += source.count;
  packs_.push_back({&out, arrangement, static_cast<uint32_t>(rows), cols, role, layer_, false,
                    std::move(sources), expert_, 0});
}

void LoadPlan::pack_transposed(PackedWeight& out, WeightRole role, SourceRows source, uint32_t source_cols) {
  packs_.push_back({&out,
                    PackArrangement::plain,
                    source_cols,
                    static_cast<uint32_t>(source.count),
                    role,
                    layer_,
                    true,
                    {source},
                    expert_,
                    0});
}

void LoadPlan::matrix(PackedWeight& out, WeightRole role, std::string tensor, uint32_t rows, uint32_t cols) {
  const bool block_quantized = role != WeightRole::router && role != WeightRole::head;
  const size_t index = claim(std::move(tensor), {rows, cols}, role, block_quantized);
  pack(out, role, PackArrangement::plain, {{index, 0, rows}}, cols);
}

void LoadPlan::vector(std::vector<float>& out, WeightRole role, std::string tensor, uint32_t size,
                      DType released) {
  values(out, role, std::move(tensor), {size}, released);
}

void LoadPlan::values(std::vector<float>& out, WeightRole role, std::string tensor,
                      std::vector<uint64_t> shape, DType released) {
  copies_.push_back({claim(std::move(tensor), std::move(shape), role, false, released), &out, nullptr});
}

void LoadPlan::table(std::vector<int32_t>& out, WeightRole role, std::string tensor, uint32_t rows,
                     uint32_t cols, uint32_t limit) {
  tables_.push_back({claim(std::move(tensor), {rows, cols}, role, false, DType::i64), &out, limit});
}

void LoadPlan::mlp(MlpWeights& out, WeightRole role, MlpNames names, uint32_t intermediate, uint32_t hidden) {
  const size_t gate = claim(std::move(names.gate), {intermediate, hidden}, role, true);
  const size_t up = claim(std::move(names.up), {intermediate, hidden}, role, true);
  pack(out.gate_up, role, PackArrangement::gate_up, {{gate, 0, intermediate}, {up, 0, intermediate}}, hidden);
  matrix(out.down, role, std::move(names.down), hidden, intermediate);
}

void LoadPlan::embedding(ModelWeights& weights, size_t index) {
  rows_of(weights.embedding_f32, weights.embedding_bf16, index);
}

void LoadPlan::rows_of(std::vector<float>& wide, std::vector<uint16_t>& narrow, size_t index) {
  copies_.push_back({index, &wide, &narrow});
}

LoadPlan make_load_plan(const ModelConfig& config, ModelWeights& weights) {
  LoadPlan plan;
  weights.layers.resize(config.total_layers());
  family_entry(config.family).plan(config, plan, weights);
  return plan;
}

void plan_ends(const ModelConfig& config, LoadPlan& plan, ModelWeights& weights) {
  plan.at_layer(0);
  const std::vector<uint64_t> shape = {config.vocab_size, config.hidden_size};
  const size_t embedding = plan.claim("model.embed_tokens.weight", shape, WeightRole::embedding);
  plan.embedding(weights, embedding);
  plan.vector(weights.final_norm, WeightRole::norm, "model.norm.weight", config.hidden_size);
  const size_t head =
      config.tie_word_embeddings ? embedding : plan.claim("lm_head.weight", shape, WeightRole::head);
  plan.pack(weights.head, WeightRole::head, PackArrangement::plain, {{head, 0, config.vocab_size}},
            config.hidden_size);
}

void plan_layer_norms(const ModelConfig& config, LoadPlan& plan, const std::string& prefix,
                      AttentionWeights& weights) {
  plan.vector(weights.input_norm, WeightRole::norm, prefix + "input_layernorm.weight", config.hidden_size);
  plan.vector(weights.post_attention_norm, WeightRole::norm, prefix + "post_attention_layernorm.weight",
              config.hidden_size);
}

void plan_gqa(const ModelConfig& config, LoadPlan& plan, const std::string& prefix,
              AttentionWeights& weights) {
  const AttentionConfig& attention = config.attention;
  const uint32_t q_rows = attention.num_heads * attention.head_dim;
  const uint32_t kv_rows = attention.num_kv_heads * attention.head_dim;
  constexpr WeightRole kRole = WeightRole::attention;
  const size_t q = plan.claim(prefix + "q_proj.weight", {q_rows, config.hidden_size}, kRole, true);
  const size_t k = plan.claim(prefix + "k_proj.weight", {kv_rows, config.hidden_size}, kRole, true);
  const size_t v = plan.claim(prefix + "v_proj.weight", {kv_rows, config.hidden_size}, kRole, true);
  plan.pack(weights.qkv, kRole, PackArrangement::plain, {{q, 0, q_rows}, {k, 0, kv_rows}, {v, 0, kv_rows}},
            config.hidden_size);
  plan.matrix(weights.output, kRole, prefix + "o_proj.weight", config.hidden_size, q_rows);
  if (attention.qkv_bias) {
    plan.vector(weights.q_bias, kRole, prefix + "q_proj.bias", q_rows);
    plan.vector(weights.k_bias, kRole, prefix + "k_proj.bias", kv_rows);
    plan.vector(weights.v_bias, kRole, prefix + "v_proj.bias", kv_rows);
  }
  if (attention.output_bias)
    plan.vector(weights.output_bias, kRole, prefix + "o_proj.bias", config.hidden_size);
  if (!attention.per_head_qk_norm && !attention.whole_qk_norm) return;
  const bool whole = attention.whole_qk_norm;
  plan.vector(weights.q_norm, kRole, prefix + "q_norm.weight", whole ? q_rows : attention.head_dim);
  plan.vector(weights.k_norm, kRole, prefix + "k_norm.weight", whole ? kv_rows : attention.head_dim);
}

void plan_gated_mlp(LoadPlan& plan, MlpWeights& out, WeightRole role, const std::string& prefix,
                    uint32_t intermediate, uint32_t hidden) {
  plan.mlp(out, role,
           {.gate = prefix + "gate_proj.weight",
            .up = prefix + "up_proj.weight",
            .down = prefix + "down_proj.weight"},
           intermediate, hidden);
}

void plan_numbered_experts(const ModelConfig& config, LoadPlan& plan, const std::string& prefix,
                           MoeLayerWeights& weights) {
  weights.experts.resize(config.router.num_experts);
  for (uint32_t e = 0; e < config.router.num_experts; ++e) {
    plan.at_expert(e);
    plan_gated_mlp(plan, weights.experts[e], WeightRole::experts, prefix + std::to_string(e) + ".",
                   config.moe_intermediate_size, config.hidden_size);
  }
  plan.at_expert(kNoExpert);
}

}  // namespace tandem
