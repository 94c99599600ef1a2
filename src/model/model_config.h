// ModelConfig: what a config.json says, in one vocabulary for every family, with the family's defaults filled
// in. Immutable after parsing. docs/architecture.md names the families.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/result.h"
#include "kernels/kernel_args.h"
#include "moe/router_config.h"

namespace tandem {

enum class Family : uint8_t {
  deepseek_v2,
  deepseek_v3,
  qwen3_moe,
  mixtral,
  granite_moe,
  deepseek_v4,
  olmoe,
  qwen2_moe,
  glm4_moe,
  gpt_oss
};

enum class AttentionKind : uint8_t {
  gqa,
  mla,
  compressed,  // DeepSeek-V4: a window of keys, and beyond it entries that pool several tokens each
};

struct YarnConfig {
  float factor = 1.0f;
  uint32_t original_max_position = 0;
  float beta_fast = 32.0f, beta_slow = 1.0f;
  float mscale = 1.0f, mscale_all_dim = 0.0f;
  bool truncate = true;                   // correction bounds rounded to whole dimensions
  std::optional<float> attention_factor;  // given: the factor on cos and sin, whatever mscale says
};

struct RopeConfig {
  float theta = 10000.0f;
  uint32_t dim = 0;  // rotated values of a head
  RopeLayout layout = RopeLayout::half_split;
  std::optional<YarnConfig> yarn;
  // One inverse frequency a pair [dim / 2], YaRN applied, computed in float64; and the factor on cos and sin.
  std::vector<double> inverse_frequencies() const;
  double cos_sin_factor() const;
};

struct AttentionConfig {
  AttentionKind kind = AttentionKind::gqa;
  uint32_t num_heads = 0;
  uint32_t num_kv_heads = 0;      // gqa
  uint32_t head_dim = 0;          // gqa
  bool per_head_qk_norm = false;  // Qwen3: RMS norm of each head of q and k before RoPE
  bool whole_qk_norm = false;     // OLMoE: one RMS norm over all heads of q and one over all of k, instead
  float qkv_bound = 0.0f;         // OLMoE's clip_qkv, behind the norms and before RoPE; 0: none
  bool qkv_bias = false, output_bias = false;  // gqa: added to the products, before norms
  bool has_sinks = false;         // gqa: a score of each head without a key or value, in its softmax
  std::vector<uint32_t> windows;  // gqa [num_layers]: keys that a row sees, itself included; 0 or none: all
  uint32_t window(uint32_t layer) const { return layer < windows.size() ? windows[layer] : 0; }
  // mla
  uint32_t q_lora_rank = 0;  // 0: q_proj straight from the hidden row
  uint32_t kv_lora_rank = 0;
  uint32_t qk_nope_head_dim = 0, qk_rope_head_dim = 0, v_head_dim = 0;
  float softmax_scale = 1.0f;  // YaRN's mscale^2 included
  RopeConfig rope;
};

// What attention of the kind `compressed` has beside AttentionConfig's heads (one key, which is the value
// too).
struct CompressedAttentionConfig {
  uint32_t window = 0;           // sliding_window: keys of this many tokens are seen as they are
  std::vector<uint32_t> ratios;  // [num_layers]: tokens that an entry pools; 0: none, the window only
  uint32_t num_output_groups = 0, output_lora_rank = 0;
  uint32_t index_num_heads = 0, index_head_dim = 0, index_top_k = 0;  // of layers with ratio 4
  RopeConfig rope;  // of layers with a ratio; those without use AttentionConfig::rope
};

// Residual streams of a token (manifold hyper-connections); 1 stream: a plain residual.
struct HyperConnectionConfig {
  uint32_t num_streams = 1;
  uint32_t sinkhorn_iterations = 0;
  float epsilon = 0.0f;
};

enum class DraftKind : uint8_t { none, mtp, dspark };

// The draft part that the files bring along, beyond the model's own layers.
struct DraftConfig {
  DraftKind kind = DraftKind::none;
  uint32_t num_stages = 0;  // blocks
  // dspark
  uint32_t block_size = 0;  // tokens drafted at once
  int32_t noise_token_id = 0;
  std::vector<uint32_t> target_layers;  // whose outputs the drafter reads
  uint32_t markov_rank = 0;
};

enum class FfnKind : uint8_t { dense, moe };

// How the routed experts are stored, where that differs from the other weights.
enum class ExpertFormat : uint8_t {
  same,
  mxfp4,  // F4_E2M1 with an F8_E8M0 scale for 32 columns of a row
  nvfp4,  // F4_E2M1 with an F8_E4M3 scale for 16 columns of a row
};

// How the released files store their weights; reported by `inspect`, and what a loader must undo.
struct QuantizationConfig {
  std::string method;                       // "fp8", ...; empty: none
  uint32_t block_rows = 0, block_cols = 0;  // weight_block_size
  DType scale_dtype = DType::f32;           // of the blocks' scales
  ExpertFormat experts = ExpertFormat::same;
  std::vector<std::string> modules_not_converted;
};

struct ModelConfig {
  Family family = Family::deepseek_v3;
  std::string model_type;  // as written in the file
  uint32_t hidden_size = 0;
  uint32_t num_layers = 0;
  uint32_t vocab_size = 0;
  uint32_t max_position_embeddings = 0;
  float rms_norm_eps = 1e-6f;
  bool tie_word_embeddings = false;
  DType stored_dtype = DType::bf16;  // torch_dtype
  QuantizationConfig quantization;

  AttentionConfig attention;
  CompressedAttentionConfig compressed;
  HyperConnectionConfig hyper_connections;

  std::vector<FfnKind> layer_ffn;  // [total_layers()]
  uint32_t dense_intermediate_size = 0;
  uint32_t moe_intermediate_size = 0;
  uint32_t shared_intermediate_size = 0;  // width of the one fused shared expert; 0: none
  bool gates_shared_expert = false;       // Qwen2-MoE: times the sigmoid of one more row of weights
  RouterConfig router;
  uint32_t num_hash_layers = 0;  // the first MoE layers: experts by token id
  float swiglu_limit = 0.0f;     // bound on both factors of an expert's SwiGLU; 0: none
  float swiglu_alpha = 0.0f;     // above 0: experts are gate * sigmoid(alpha * gate) * (up + 1)

  // GraniteMoE's multipliers; 1 elsewhere. Logits are divided by logits_divisor.
  float embedding_multiplier = 1.0f, residual_multiplier = 1.0f, logits_divisor = 1.0f;

  uint32_t num_mtp_layers = 0;  // layers >= num_layers in the files, ignored by the plain loader
  DraftConfig draft;
  // Draft layers that this run holds: they follow the model's own in every list of layers. 0 until
  // hold_drafts.
  uint32_t num_draft_layers = 0;
  std::optional<int32_t> bos_token_id;
  std::vector<int32_t> eos_token_ids;

  bool is_moe(uint32_t layer) const { return layer_ffn[layer] == FfnKind::moe; }
  uint32_t total_layers() const { return num_layers + num_draft_layers; }
  // From now on the draft stages that the files bring along are layers of this run.
  void hold_drafts() {
    num_draft_layers = draft.num_stages;
    layer_ffn.resize(total_layers(), FfnKind::moe);
    if (attention.kind == AttentionKind::compressed) compressed.ratios.resize(total_layers(), 0);
  }
};

// Parses the text of a config.json. `source` names it in messages. Errors name the key, its value and what
// would do; a model_type that is not implemented is refused by name (unsupported) with the list of those that
// are.
Result<ModelConfig> parse_model_config(const std::string& text, const std::string& source);

}  // namespace tandem
