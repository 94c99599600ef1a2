// ModelWeights: every packed tensor that one rank holds, and the memory behind them. Filled by the loader
// from a checkpoint, then read-only and shared by every lane. A part that the rank's roles do not need is
// empty.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/buffer.h"
#include "kernels/kernel_table.h"
#include "kernels/weight_quantizer.h"
#include "model/model_config.h"
#include "moe/expert_placement.h"
#include "moe/moe_weights.h"

namespace tandem {

class MemoryOwners;
class PackedCache;
struct WeightNodes;

// One site of manifold hyper-connections: what mixes a token's streams before and after a block. float32, as
// the files have it, whatever the compute dtype.
struct HyperConnectionWeights {
  std::vector<float> mix;    // [streams * (2 + streams), streams * hidden]; of the head: [streams, ..]
  std::vector<float> base;   // [streams * (2 + streams)]; of the head: [streams]
  std::vector<float> scale;  // [3]: of pre, post and the mixing matrix; of the head: [1]
};

struct AttentionWeights {
  std::vector<float> input_norm;           // [hidden]
  std::vector<float> post_attention_norm;  // [hidden]
  // gqa: rows of q, then k, then v in one matrix [(heads + 2 * kv_heads) * head_dim, hidden]
  PackedWeight qkv;
  std::vector<float> q_bias, k_bias, v_bias;  // [heads * head_dim], [kv_heads * head_dim]; or empty
  std::vector<float> output_bias;             // [hidden] or empty
  // [head_dim], over whole projections [heads * head_dim] and [kv_heads * head_dim], or empty
  std::vector<float> q_norm, k_norm;
  // mla
  PackedWeight q_a;              // [q_lora_rank, hidden]; empty without q_lora
  std::vector<float> q_a_norm;   // [q_lora_rank]
  PackedWeight q_b;              // [heads * (nope + rope), q_lora_rank]; without q_lora: q_proj, [.., hidden]
  PackedWeight kv_a;             // [kv_lora_rank + rope, hidden]
  std::vector<float> kv_a_norm;  // [kv_lora_rank]
  std::vector<PackedWeight> key_absorb;    // [heads]: W_UK transposed, [kv_lora_rank, nope]
  std::vector<PackedWeight> key_expand;    // [heads]: W_UK, [nope, kv_lora_rank]
  std::vector<PackedWeight> value_absorb;  // [heads]: W_UV, [v_head_dim, kv_lora_rank]
  PackedWeight output;  // [hidden, heads * (head_dim or v_head_dim)]; compressed: [hidden, groups * lora]
  // compressed: q_a, q_a_norm, q_b [heads * head_dim, q_lora_rank], kv_a [head_dim, hidden] and kv_a_norm
  // [head_dim] are used as well
  std::vector<float> sinks;                 // [heads]; of gqa too, or empty
  std::vector<PackedWeight> output_groups;  // [groups]: [output_lora_rank, heads * head_dim / groups]
  // Rows of the compressor's keys, then of its scores, each head_dim (ratio 4: 2 * head_dim), then for ratio
  // 4 the same of the indexer with index_head_dim; from the hidden row. Empty without a ratio.
  PackedWeight compressor;
  std::vector<float> compressor_position_bias;  // [ratio, head_dim or 2 * head_dim]
  std::vector<float> compressor_norm;           // [head_dim]
  // ratio 4
  std::vector<float> index_position_bias;  // [4, 2 * index_head_dim]
  std::vector<float> index_norm;           // [index_head_dim]
  PackedWeight index_query;                // [index_num_heads * index_head_dim, q_lora_rank]
  PackedWeight index_head_weights;         // [index_num_heads, hidden]
};

struct LayerWeights {
  AttentionWeights attention;
  HyperConnectionWeights attention_connection, ffn_connection;  // empty with a plain residual
  MlpWeights dense;                                             // dense layers, attention role
  MoeLayerWeights moe;                                          // MoE layers: the parts that this rank holds
};

// A drafter: what stands before and behind its layers (LayerWeights of the same rank).
struct DraftWeights {
  // Multi-token prediction.
  std::vector<float> embedding_norm, hidden_norm;  // [hidden]
  PackedWeight join;                               // [hidden, 2 * hidden]: embedding, then hidden row
  // DeepSeek-V4 instead of `join`: both [hidden, hidden]; the second is the same for each of the streams.
  PackedWeight embedding_projection;
  std::vector<PackedWeight> hidden_projection;  // [streams]
  // DSpark.
  PackedWeight tap_projection;           // [hidden, taps * hidden]
  std::vector<float> tap_norm;           // [hidden]
  std::vector<uint16_t> markov_in_bf16;  // [vocab, rank]: of a token, when the compute dtype is bf16
  std::vector<float> markov_in_f32;      // the same when it is f32
  PackedWeight markov_out;               // [vocab, rank]
  std::vector<float> confidence;         // [hidden + rank]
  // Both kinds.
  HyperConnectionWeights head_connection;  // DeepSeek-V4
  std::vector<float> head_norm;            // [hidden], before the model's head
};

// A tensor that was quantised while it was loaded: what that lost, over the parts that this rank packs.
struct QuantizedTensor {
  std::string tensor;
  PackFormat format = PackFormat::int8;
  QuantizationError error;
};

struct ModelWeights {
  DType compute_dtype = DType::bf16;     // bf16 or f32
  std::vector<uint16_t> embedding_bf16;  // [vocab, hidden] when the compute dtype is bf16
  std::vector<float> embedding_f32;      // [vocab, hidden] when it is f32
  std::vector<float> final_norm;         // [hidden]
  HyperConnectionWeights head_connection;
  PackedWeight head;                           // [vocab, hidden]
  std::vector<LayerWeights> layers;            // [total_layers()]
  DraftWeights draft;                          // empty when no drafts are held
  std::vector<OwnedBuffer> storage;            // what the packed weights point into,
  std::shared_ptr<const PackedCache> cache;    // or this, when they come from a cache
  std::shared_ptr<const MemoryOwners> owners;  // by NUMA node; null with one
  size_t resident_bytes = 0;
  std::vector<QuantizedTensor> quantized;  // in the order of the load plan
};

// Which parts of the model a rank holds. Colocated: all true.
struct HeldParts {
  bool attention = true;       // embeddings, attention, norms, dense layers, head
  bool experts = true;         // routed experts, of these:
  ExpertShare share = {};      // all rows of all experts unless said otherwise
  bool router = true;          // the rank that routes
  bool shared_experts = true;  // the rank that runs the shared experts
};

// What becomes of weights.
enum class WeightStorage : uint8_t {
  stored,       // codes with block scales (fp8, fp4) are packed as they are (float32 compute: dequantised)
  dequantized,  // codes are dequantised to the compute dtype
  // Experts, shared experts, projections, dense layers and the head are quantised while they are loaded,
  // where the files do not have them in this format already; absorbed projections, router, embedding, norms
  // and what else released fp8 models leave in bf16 stay as they are. bf16 compute only.
  int8,
  fp8,
  mxfp8,
  mxfp4,
};
std::string_view weight_storage_name(WeightStorage storage);  // "auto", "dequantized", "int8", ..
std::optional<WeightStorage> weight_storage_from_name(std::string_view name);
// The format that `storage` makes; none for the first two.
std::optional<PackFormat> quantized_format(WeightStorage storage);
// And as what the head is, where it is not stored as codes: every logit comes from one row of it, so it keeps
// eight bits.
PackFormat quantized_head_format(PackFormat format);

struct LoadOptions {
  DType compute_dtype = DType::bf16;
  WeightStorage storage = WeightStorage::stored;
  HeldParts held;
  bool show_progress = true;  // a bar on a terminal, a line every 10 % in a log
  // Bytes that the weights may take; none: what the system and the cgroup leave.
  std::optional<uint64_t> memory_limit = std::nullopt;
  // Folder where packed weights are kept for the next start; empty: nowhere. Loading never fails for what is
  // in it, or because it cannot be written: that is logged, and weights are packed from the checkpoint.
  std::string cache_folder = {};
  const WeightNodes* nodes = nullptr;  // that weights are bound to; null: nowhere
};

// Reads the Hugging Face folder `path`. Prints need and have of memory before reading; refuses
// (resource_exhausted) when it does not fit, and (unsupported) weights that `storage` cannot make. A tensor
// that no claim covers, one that is missing, and one of another shape are named, as are scales and codes that
// are not numbers, and values that are not, where they are quantised.
Result<ModelWeights> load_model_weights(const std::string& path, const ModelConfig& config,
                                        const KernelTable& table, ThreadPool& pool,
                                        const LoadOptions& options);

// A 64-bit fingerprint of config.json, the tensor index (names, dtypes, shapes, offsets) and samples of every
// tensor: the same on every rank that reads the same checkpoint, whatever part it holds.
Result<uint64_t> model_fingerprint(const std::string& path);

}  // namespace tandem
