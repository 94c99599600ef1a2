#include "model/inspect.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/memory_budget.h"
#include "model/family_deepseek_v4.h"
#include "model/model.h"

namespace tandem {
namespace {

bool is_block_quantized(const TensorClaim& claim, const QuantizationConfig& quantization) {
  if (quantization.method != "fp8" || !claim.block_quantized) return false;
  const std::string module = claim.tensor.substr(0, claim.tensor.rfind('.'));
  return std::ranges::none_of(quantization.modules_not_converted, [&](const std::string& name) {
    return module == name || module.starts_with(name + ".");
  });
}

bool is_table(const TensorClaim& claim) {
  return claim.released == DType::i64;
}

// Values of `dtype`, and a scale for `block` columns of each row.
void count_rows(const TensorClaim& claim, DType dtype, DType scale, uint64_t block,
                InspectReport::Role& role) {
  const uint64_t cols = claim.shape.back(), rows = claim.elements() / cols;
  role.bytes[dtype] += rows * dtype_bytes(dtype, cols);
  role.bytes[scale] += dtype_bytes(scale, rows * ((cols + block - 1) / block));
}

void count(const TensorClaim& claim, const ModelConfig& config, InspectReport::Role& role) {
  const uint64_t elements = claim.elements();
  const ExpertFormat experts =
      claim.role == WeightRole::experts ? config.quantization.experts : ExpertFormat::same;
  if (!is_table(claim)) role.parameters += elements;
  if (claim.fp4_cols != 0) {
    role.bytes[DType::f4_e2m1] += dtype_bytes(DType::f4_e2m1, elements);
    role.bytes[DType::f8_e8m0] += elements / 32;
    return;
  }
  if (experts == ExpertFormat::mxfp4) {
    count_rows(claim, DType::f4_e2m1, DType::f8_e8m0, 32, role);
  } else if (experts == ExpertFormat::nvfp4) {
    count_rows(claim, DType::f4_e2m1, DType::f8_e4m3, 16, role);
  } else if (is_block_quantized(claim, config.quantization)) {
    const uint64_t rows = config.quantization.block_rows, cols = config.quantization.block_cols;
    role.bytes[DType::f8_e4m3] += elements;
    const DType scale = config.quantization.scale_dtype;
    role.bytes[scale] +=
        dtype_bytes(scale, (claim.shape[0] + rows - 1) / rows * ((claim.shape[1] + cols - 1) / cols));
  } else {
    const DType dtype = claim.released == DType::none ? config.stored_dtype : claim.released;
    role.bytes[dtype] += dtype_bytes(dtype, elements);
  }
}

// What the cache of a sequence of `tokens` takes.
InspectReport::KvSize kv_size(const ModelConfig& config, DType dtype, uint64_t tokens) {
  const AttentionConfig& attention = config.attention;
  InspectReport::KvSize size{.tokens = tokens};
  if (attention.kind != AttentionKind::compressed) {
    const PagedKvLayout layout = kv_layout(config, dtype);
    uint64_t held = 0;  // tokens, over all layers
    for (uint32_t layer = 0; layer < config.num_layers; ++layer) {
      const uint64_t window = attention.window(layer);
      held += window == 0 ? tokens : std::min(tokens, window);
    }
    size.keys = held * layout.block_bytes() / layout.tokens_per_block;
    return size;
  }
  const auto bytes = [dtype](uint64_t values) { return uint64_t{dtype_bytes(dtype, values)}; };
  const CompressedAttentionConfig& compressed = config.compressed;
  for (const uint32_t ratio : compressed.ratios) {
    size.keys += std::min<uint64_t>(tokens, compressed.window) * bytes(attention.head_dim);
    if (ratio == kSparseRatio) {
      size.sparse_entries += tokens / ratio * bytes(attention.head_dim);
      size.indexer_keys += tokens / ratio * bytes(compressed.index_head_dim);
    } else if (ratio != 0) {
      size.heavy_entries += tokens / ratio * bytes(attention.head_dim);
    }
  }
  return size;
}

// "671.03 B", "2.23 M": a model is named after such a figure.
std::string parameters_text(uint64_t parameters) {
  const auto count = static_cast<double>(parameters);
  if (parameters >= 100'000'000) return fmt::format("{:.2f} B", count / 1e9);
  return parameters >= 100'000 ? fmt::format("{:.2f} M", count / 1e6) : fmt::format("{:.1f} K", count / 1e3);
}

// "mtp", "dspark": as users write them.
const char* kind_name(DraftKind kind) {
  return kind == DraftKind::dspark ? "dspark" : kind == DraftKind::mtp ? "mtp" : "none";
}

struct PlanSize {
  std::array<InspectReport::Role, kWeightRoles> roles;
  uint64_t parameters = 0, stored_bytes = 0;
};

PlanSize plan_size(const ModelConfig& config) {
  PlanSize size;
  ModelWeights unfilled;
  const LoadPlan plan = make_load_plan(config, unfilled);
  for (const TensorClaim& claim : plan.claims())
    count(claim, config, size.roles[static_cast<size_t>(claim.role)]);
  for (const InspectReport::Role& role : size.roles) {
    size.parameters += role.parameters;
    size.stored_bytes += role.total_bytes();
  }
  return size;
}

InspectReport::Drafter drafter_of(ModelConfig config, const PlanSize& model) {
  const DraftConfig& draft = config.draft;
  InspectReport::Drafter drafter{draft.kind, draft.num_stages, draft.block_size};
  const bool planned =
      draft.kind == DraftKind::dspark || (draft.kind == DraftKind::mtp && draft.num_stages == 1);
  if (!planned) return drafter;
  config.hold_drafts();
  const PlanSize all = plan_size(config);
  drafter.parameters = all.parameters - model.parameters;
  drafter.stored_bytes = all.stored_bytes - model.stored_bytes;
  return drafter;
}

}  // namespace

uint64_t InspectReport::Role::total_bytes() const {
  uint64_t total = 0;
  for (const auto& [dtype, amount] : bytes) total += amount;
  return total;
}

InspectReport inspect_model(const ModelConfig& config, DType kv_dtype) {
  InspectReport report;
  report.kv_dtype = kv_dtype;
  report.model_type = config.model_type;
  report.num_layers = config.num_layers;
  report.num_moe_layers = static_cast<uint32_t>(std::ranges::count(config.layer_ffn, FfnKind::moe));
  report.num_experts = config.router.num_experts;
  report.top_k = config.router.top_k;
  report.moe_intermediate_size = config.moe_intermediate_size;

  const PlanSize size = plan_size(config);
  report.roles = size.roles;
  report.parameters = size.parameters;
  report.stored_bytes = size.stored_bytes;
  report.drafter = drafter_of(config, size);
  const InspectReport::Role& experts = report.role(WeightRole::experts);
  const uint64_t expert_count = uint64_t{report.num_moe_layers} * report.num_experts;
  if (expert_count != 0) report.expert_bytes = experts.total_bytes() / expert_count;
  report.routed_bytes_per_token = report.expert_bytes * report.top_k * report.num_moe_layers;
  report.active_parameters = report.parameters - experts.parameters;
  if (expert_count != 0) report.active_parameters += experts.parameters / report.num_experts * report.top_k;
  if (!config.tie_word_embeddings) report.active_parameters -= report.role(WeightRole::embedding).parameters;

  for (const uint64_t tokens : {4096, 32768, 131072})
    report.kv_sizes.push_back(kv_size(config, kv_dtype, tokens));
  // Far from the beginning, where windows are full: what one more token costs, entries shared among the
  // tokens that they pool.
  const uint64_t near = 4096, far = 8192;
  report.kv_bytes_per_token =
      (kv_size(config, kv_dtype, far).total() - kv_size(config, kv_dtype, near).total()) / (far - near);
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
  text += fmt::format("KV cache a token   {} ({}, all layers)\n", bytes_text(report.kv_bytes_per_token),
                      dtype_name(report.kv_dtype));
  for (const InspectReport::KvSize& size : report.kv_sizes) {
    text += fmt::format("  {:>4} Ki tokens   {}", size.tokens / 1024, bytes_text(size.total()));
    if (size.total() != size.keys) {
      text += fmt::format(" (window {}, CSA entries {}, HCA entries {}, indexer keys {})",
                          bytes_text(size.keys), bytes_text(size.sparse_entries),
                          bytes_text(size.heavy_entries), bytes_text(size.indexer_keys));
    }
    text += '\n';
  }
  if (const InspectReport::Drafter& drafter = report.drafter; drafter.kind != DraftKind::none) {
    text += fmt::format("drafter            {}: {} stages", kind_name(drafter.kind), drafter.num_stages);
    if (drafter.block_size != 0) text += fmt::format(", blocks of {} tokens", drafter.block_size);
    if (drafter.parameters != 0) {
      text += fmt::format(", {} parameters beside the model's, {}", parameters_text(drafter.parameters),
                          bytes_text(drafter.stored_bytes));
    }
    text += '\n';
  }
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
  object["kv_dtype"] = dtype_name(report.kv_dtype);
  object["kv_bytes_per_token"] = report.kv_bytes_per_token;
  for (const InspectReport::KvSize& size : report.kv_sizes) {
    object["kv_bytes"].push_back({{"tokens", size.tokens},
                                  {"keys", size.keys},
                                  {"csa_entries", size.sparse_entries},
                                  {"hca_entries", size.heavy_entries},
                                  {"indexer_keys", size.indexer_keys},
                                  {"total", size.total()}});
  }
  if (const InspectReport::Drafter& drafter = report.drafter; drafter.kind != DraftKind::none) {
    object["drafter"] = {{"kind", kind_name(drafter.kind)}, {"stages", drafter.num_stages}};
    if (drafter.block_size != 0) object["drafter"]["block_size"] = drafter.block_size;
    object["drafter"]["parameters"] = drafter.parameters;
    object["drafter"]["stored_bytes"] = drafter.stored_bytes;
  }
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
