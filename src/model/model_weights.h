// ModelWeights: every packed tensor that one rank holds, and the memory behind them. Filled by the loader
// from a checkpoint, then read-only and shared by every lane. A part that the rank's roles do not need is
// empty.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/buffer.h"
#include "kernels/kernel_table.h"
#include "model/model_config.h"
#include "moe/expert_placement.h"
#include "moe/moe_weights.h"

namespace tandem {

struct AttentionWeights {
  std::vector<float> input_norm;           // [hidden]
  std::vector<float> post_attention_norm;  // [hidden]
  // gqa: rows of q, then k, then v in one matrix [(heads + 2 * kv_heads) * head_dim, hidden]
  PackedWeight qkv;
  std::vector<float> q_norm, k_norm;  // [head_dim] or empty
  // mla
  PackedWeight q_a;              // [q_lora_rank, hidden]; empty without q_lora
  std::vector<float> q_a_norm;   // [q_lora_rank]
  PackedWeight q_b;              // [heads * (nope + rope), q_lora_rank]; without q_lora: q_proj, [.., hidden]
  PackedWeight kv_a;             // [kv_lora_rank + rope, hidden]
  std::vector<float> kv_a_norm;  // [kv_lora_rank]
  std::vector<PackedWeight> key_absorb;    // [heads]: W_UK transposed, [kv_lora_rank, nope]
  std::vector<PackedWeight> value_absorb;  // [heads]: W_UV, [v_head_dim, kv_lora_rank]
  PackedWeight output;                     // [hidden, heads * (head_dim or v_head_dim)]
};

struct LayerWeights {
  AttentionWeights attention;
  MlpWeights dense;     // dense layers, attention role
  MoeLayerWeights moe;  // MoE layers: the parts that this rank holds
};

struct ModelWeights {
  DType compute_dtype = DType::bf16;     // bf16 or f32
  std::vector<uint16_t> embedding_bf16;  // [vocab, hidden] when the compute dtype is bf16
  std::vector<float> embedding_f32;      // [vocab, hidden] when it is f32
  std::vector<float> final_norm;         // [hidden]
  PackedWeight head;                     // [vocab, hidden]
  std::vector<LayerWeights> layers;      // [num_layers]
  std::vector<OwnedBuffer> storage;      // what the packed weights point into
  size_t resident_bytes = 0;
};

// Which parts of the model a rank holds. Colocated: all true.
struct HeldParts {
  bool attention = true;       // embeddings, attention, norms, dense layers, head
  bool experts = true;         // routed experts, of these:
  ExpertShare share = {};      // all rows of all experts unless said otherwise
  bool router = true;          // the rank that routes
  bool shared_experts = true;  // the rank that runs the shared experts
};

struct LoadOptions {
  DType compute_dtype = DType::bf16;
  HeldParts held;
  bool show_progress = true;  // a bar on a terminal, a line every 10 % in a log
  // Bytes that the weights may take; none: what the system and the cgroup leave.
  std::optional<uint64_t> memory_limit = std::nullopt;
};

// Reads the Hugging Face folder `path`. Prints need and have of memory before reading; refuses
// (resource_exhausted) when it does not fit. A tensor that no claim covers, one that is missing, and one of
// another shape are named.
Result<ModelWeights> load_model_weights(const std::string& path, const ModelConfig& config,
                                        const KernelTable& table, ThreadPool& pool,
                                        const LoadOptions& options);

// A 64-bit fingerprint of config.json, the tensor index (names, dtypes, shapes, offsets) and samples of every
// tensor: the same on every rank that reads the same checkpoint, whatever part it holds.
Result<uint64_t> model_fingerprint(const std::string& path);

}  // namespace tandem
