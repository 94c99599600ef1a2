// What a configuration says about a model's size, without its files: for `tandem inspect`. Counted over the
// same plan that the loader runs, so that the two cannot disagree. What a drafter brings along is counted by
// itself; tables of expert ids count as bytes, not as parameters. Any thread.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "model/load_plan.h"
#include "model/model_config.h"
#include "moe/expert_placement.h"

namespace tandem {

struct InspectReport {
  struct Role {
    uint64_t parameters = 0;
    std::map<DType, uint64_t> bytes;  // as released files store them, block scales included
    uint64_t total_bytes() const;
  };

  // What one FFN rank holds of the routed experts.
  struct Rank {
    ExpertShare share;
    uint64_t experts = 0;       // of a layer
    uint64_t stored_bytes = 0;  // in all layers
  };

  // The cache of one sequence in all layers, in bfloat16. Where attention sees a window and entries beyond
  // it, `keys` are the window's; elsewhere they are everything.
  struct KvSize {
    uint64_t tokens = 0;
    uint64_t keys = 0, sparse_entries = 0, heavy_entries = 0, indexer_keys = 0;  // bytes
    uint64_t total() const { return keys + sparse_entries + heavy_entries + indexer_keys; }
  };

  // Layers of multi-token prediction, or DSpark, beyond the model's own.
  struct Drafter {
    DraftKind kind = DraftKind::none;
    uint32_t num_stages = 0, block_size = 0;
    uint64_t parameters = 0, stored_bytes = 0;  // 0 where the loader has no plan of it
  };

  std::string model_type;
  uint32_t num_layers = 0, num_moe_layers = 0, num_experts = 0, top_k = 0;
  uint64_t parameters = 0;
  // Read for one token: all but the experts that are not chosen and the embedding table (of which a row is
  // read), which counts where it is also the head.
  uint64_t active_parameters = 0;
  std::array<Role, kWeightRoles> roles;  // by WeightRole
  uint64_t stored_bytes = 0;
  uint64_t expert_bytes = 0;            // one routed expert of one layer, as stored
  uint64_t routed_bytes_per_token = 0;  // of routed experts, in all layers, as stored
  DType kv_dtype = DType::bf16;         // of the cache; f8_e4m3 with its scales
  uint64_t kv_bytes_per_token = 0;      // in all layers, once windows are full
  std::vector<KvSize> kv_sizes;         // of 4096, 32768 and 131072 tokens
  Drafter drafter;                      // counted in none of the figures above
  uint32_t moe_intermediate_size = 0;
  std::vector<Rank> ffn_ranks;  // in order of rank; empty unless asked for

  const Role& role(WeightRole which) const { return roles[static_cast<size_t>(which)]; }
};

// `kv_dtype`: one that check_model_options lets pass, or bf16.
InspectReport inspect_model(const ModelConfig& config, DType kv_dtype = DType::bf16);
// Adds the next FFN rank.
void add_ffn_rank(InspectReport& report, const ExpertShare& share);

// A table of several lines for a reader.
std::string inspect_text(const InspectReport& report);
// One JSON object: model_type, num_layers, num_moe_layers, num_experts, top_k, parameters, active_parameters,
// stored_bytes, roles {name: {parameters, bytes: {dtype: bytes}}}, routed_bytes_per_token,
// kv_dtype, kv_bytes_per_token, kv_bytes [{tokens, keys, csa_entries, hca_entries, indexer_keys, total}],
// where there is one drafter {kind, stages, block_size (DSpark), parameters, stored_bytes}, and ffn_ranks
// [{rank, experts, row_begin, row_end, stored_bytes}] where they were asked for.
std::string inspect_json(const InspectReport& report);

}  // namespace tandem
