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

enum class Family : uint8_t { deepseek_v2, deepseek_v3, qwen3_moe, mixtral, granite_moe };

enum class AttentionKind : uint8_t { gqa, mla };

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
  // mla
  uint32_t q_lora_rank = 0;  // 0: q_proj straight from the hidden row
  uint32_t kv_lora_rank = 0;
  uint32_t qk_nope_head_dim = 0, qk_rope_head_dim = 0, v_head_dim = 0;
  float softmax_scale = 1.0f;  // YaRN's mscale^2 included
  RopeConfig rope;
};

enum class FfnKind : uint8_t { dense, moe };

// How the released files store their weights; reported by `inspect`, and what a loader must undo.
struct QuantizationConfig {
  std::string method;                       // "fp8", ...; empty: none
  uint32_t block_rows = 0, block_cols = 0;  // weight_block_size
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

  std::vector<FfnKind> layer_ffn;  // [num_layers]
  uint32_t dense_intermediate_size = 0;
  uint32_t moe_intermediate_size = 0;
  uint32_t shared_intermediate_size = 0;  // width of the one fused shared expert; 0: none
  RouterConfig router;

  // GraniteMoE's multipliers; 1 elsewhere. Logits are divided by logits_divisor.
  float embedding_multiplier = 1.0f, residual_multiplier = 1.0f, logits_divisor = 1.0f;

  uint32_t num_mtp_layers = 0;  // layers >= num_layers in the files, ignored by the plain loader
  std::optional<int32_t> bos_token_id;
  std::vector<int32_t> eos_token_ids;

  bool is_moe(uint32_t layer) const { return layer_ffn[layer] == FfnKind::moe; }
};

// Parses the text of a config.json. `source` names it in messages. Errors name the key, its value and what
// would do; a model_type that is not implemented is refused by name (unsupported) with the list of those that
// are.
Result<ModelConfig> parse_model_config(const std::string& text, const std::string& source);

}  // namespace tandem
