#include "model/inspect.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/memory_budget.h"

namespace tandem {
namespace {

bool is_block_quantized(const TensorClaim& claim, const QuantizationConfig& quantization) {
  if (quantization.method != "fp8" || !claim.block_quantized) return false;
  const std::string module = claim.tensor.substr(0, claim.tensor.rfind('.'));
  return std::ranges::none_of(quantization.modules_not_converted, [&](const std::string& name) {
    return module == name || module.starts_with(name + ".");
  });
}

void count(const TensorClaim& claim, const ModelConfig& config, InspectReport::Role& role) {
  const uint64_t elements = claim.elements();
  role.parameters += elements;
  if (is_block_quantized(claim, config.quantization)) {
    const uint64_t rows = config.quantization.block_rows, cols = config.quantization.block_cols;
    role.bytes[DType::f8_e4m3] += elements;
    role.bytes[DType::f32] +=
        (claim.shape[0] + rows - 1) / rows * ((claim.shape[1] + cols - 1) / cols) * sizeof(float);
  } else if (claim.tensor.ends_with("e_score_correction_bias")) {
    role.bytes[DType::f32] += elements * sizeof(float);  // in released files, whatever the other weights are
  } else {
    role.bytes[config.stored_dtype] += dtype_bytes(config.stored_dtype, elements);
  }
}

// "671.03 B", "2.23 M": a model is named after such a figure.
std::string parameters_text(uint64_t parameters) {
  const auto count = static_cast<double>(parameters);
  if (parameters >= 100'000'000) return fmt::format("{:.2f} B", count / 1e9);
  return parameters >= 100'000 ? fmt::format("{:.2f} M", count / 1e6) : fmt::format("{:.1f} K", count / 1e3);
}

}  // namespace

uint64_t InspectReport::Role::total_bytes() const {
  uint64_t total = 0;
  for (const auto& [dtype, amount] : bytes) total += amount;
  return total;
}

InspectReport inspect_model(const ModelConfig& config) {
  InspectReport report;
  report.model_type = config.model_type;
  report.num_layers = config.num_layers;
  report.num_moe_layers = static_cast<uint32_t>(std::ranges::count(config.layer_ffn, FfnKind::moe));
  report.num_experts = config.router.num_experts;
  report.top_k = config.router.top_k;
  report.moe_intermediate_size = config.moe_intermediate_size;

  ModelWeights unfilled;
  const LoadPlan plan = make_load_plan(config, unfilled);
  for (const TensorClaim& claim : plan.claims()) {
    count(claim, config, report.roles[static_cast<size_t>(claim.role)]);
  }
  for (const InspectReport::Role& role : report.roles) {
    report.parameters += role.parameters;
    report.stored_bytes += role.total_bytes();
  }
  const InspectReport::Role& experts = report.role(WeightRole::experts);
  const uint64_t expert_count = uint64_t{report.num_moe_layers} * report.num_experts;
  if (expert_count != 0) report.expert_bytes = experts.total_bytes() / expert_count;
  report.routed_bytes_per_token = report.expert_bytes * report.top_k * report.num_moe_layers;
  report.active_parameters = report.parameters - experts.parameters;
  if (expert_count != 0) report.active_parameters += experts.parameters / report.num_experts * report.top_k;
  if (!config.tie_word_embeddings) report.active_parameters -= report.role(WeightRole::embedding).parameters;

  const AttentionConfig& attention = config.attention;
  const uint64_t values = attention.kind == AttentionKind::mla
                              ? uint64_t{attention.kv_lora_rank} + attention.qk_rope_head_dim
                              : uint64_t{2} * attention.num_kv_heads * attention.head_dim;
  report.kv_bytes_per_token = config.num_layers * dtype_bytes(DType::bf16, values);
  return report;
}

void add_ffn_rank(InspectReport& report, const ExpertShare& share) {
  InspectReport::Rank rank{share, 0, 0};
  rank.share.rows = share.rows.within(report.moe_intermediate_size);
  for (uint32_t expert = 0; expert < report.num_experts; ++expert)
    rank.experts += share.contains(expert) ? 1 : 0;
  if (report.moe_intermediate_size != 0) {
    rank.stored_bytes = report.expert_bytes * report.num_moe_layers * rank.experts * rank.share.rows.size() /
                        report.moe_intermediate_size;
  }
  report.ffn_ranks.push_back(std::move(rank));
}

std::string inspect_text(const InspectReport& report) {
  std::string text = fmt::format("model              {}: {} layers, {} of them MoE with {} experts, top-{}\n",
                                 report.model_type, report.num_layers, report.num_moe_layers,
                                 report.num_experts, report.top_k);
  text += fmt::format("parameters         {}, {} active for a token\n", parameters_text(report.parameters),
                      parameters_text(report.active_parameters));
  text += fmt::format("stored             {}\n", bytes_text(report.stored_bytes));
  for (size_t i = 0; i < kWeightRoles; ++i) {
    const InspectReport::Role& role = report.roles[i];
    if (role.parameters == 0) continue;
    std::string dtypes;
    for (const auto& [dtype, bytes] : role.bytes) {
      dtypes += fmt::format("{}{} {}", dtypes.empty() ? "" : ", ", dtype_name(dtype), bytes_text(bytes));
    }
    text += fmt::format("  {:<16} {:>10}  {}\n", weight_role_name(static_cast<WeightRole>(i)),
                        parameters_text(role.parameters), dtypes);
  }
  text += fmt::format("routed a token     {} ({} layers x {} experts x {})\n",
                      bytes_text(report.routed_bytes_per_token), report.num_moe_layers, report.top_k,
                      bytes_text(report.expert_bytes));
  text += fmt::format("KV cache a token   {} (bf16, all layers)\n", bytes_text(report.kv_bytes_per_token));
  for (size_t i = 0; i < report.ffn_ranks.size(); ++i) {
    const InspectReport::Rank& rank = report.ffn_ranks[i];
    const bool whole = rank.share.rows.size() == report.moe_intermediate_size;
    const std::string rows =
        whole ? "" : fmt::format(", rows {}..{} of each", rank.share.rows.begin, rank.share.rows.end);
    text += fmt::format("FFN rank {:<9} {} ({} experts a layer{})\n", i, bytes_text(rank.stored_bytes),
                        rank.experts, rows);
  }
  return text;
}

std::string inspect_json(const InspectReport& report) {
  nlohmann::ordered_json object = {{"model_type", report.model_type},
                                   {"num_layers", report.num_layers},
                                   {"num_moe_layers", report.num_moe_layers},
                                   {"num_experts", report.num_experts},
                                   {"top_k", report.top_k},
                                   {"parameters", report.parameters},
                                   {"active_parameters", report.active_parameters},
                                   {"stored_bytes", report.stored_bytes},
                                   {"roles", nlohmann::ordered_json::object()}};
  for (size_t i = 0; i < kWeightRoles; ++i) {
    const InspectReport::Role& role = report.roles[i];
    if (role.parameters == 0) continue;
    nlohmann::ordered_json bytes = nlohmann::ordered_json::object();
    for (const auto& [dtype, amount] : role.bytes) bytes[std::string(dtype_name(dtype))] = amount;
    object["roles"][std::string(weight_role_name(static_cast<WeightRole>(i)))] = {
        {"parameters", role.parameters}, {"bytes", bytes}};
  }
  object["expert_bytes"] = report.expert_bytes;
  object["routed_bytes_per_token"] = report.routed_bytes_per_token;
  object["kv_bytes_per_token"] = report.kv_bytes_per_token;
  for (size_t i = 0; i < report.ffn_ranks.size(); ++i) {
    const InspectReport::Rank& rank = report.ffn_ranks[i];
    object["ffn_ranks"].push_back({{"rank", i},
                                   {"experts", rank.experts},
                                   {"row_begin", rank.share.rows.begin},
                                   {"row_end", rank.share.rows.end},
                                   {"stored_bytes", rank.stored_bytes}});
  }
  return object.dump();
}

}  // namespace tandem
