// LoadPlan: every tensor of a model by name, shape and role, and where its numbers go in a ModelWeights.
// Built by a family from the configuration alone, so that `inspect` counts a model without its files; run by
// load_model_weights. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "model/model_weights.h"

namespace tandem {

// What a tensor is for; decides which rank needs it.
enum class WeightRole : uint8_t { embedding, head, norm, attention, dense, router, experts, shared_experts };
inline constexpr size_t kWeightRoles = 8;

std::string_view weight_role_name(WeightRole role);
bool is_held(WeightRole role, const HeldParts& held);

// Of a tensor or packed weight that belongs to no single expert.
inline constexpr uint32_t kNoExpert = UINT32_MAX;

// One tensor that the checkpoint must have, with exactly this shape.
struct TensorClaim {
  std::string tensor;
  std::vector<uint64_t> shape;
  WeightRole role = WeightRole::norm;
  bool block_quantized = false;  // fp8 releases store it as F8_E4M3 with block scales
  uint32_t expert = kNoExpert;   // the one that it belongs to; a stack of experts has none
  DType released = DType::none;  // what released files store it as, where that is not the model's own type
  // Of fp4 in blocks, `shape` [.., blocks of 32 columns, 16 bytes], with scales in a tensor of its own: the
  // columns of a row. 0: everything else.
  uint64_t fp4_cols = 0;
  // A stack [experts, cols, rows] that is seen as [experts * rows, cols]; `interleaved`: with the rows that
  // alternate one half below the other.
  bool turned = false, interleaved = false;
  std::string_view when_missing;  // what else the message says; a literal
  uint64_t elements() const;
};

// Rows of a claimed tensor, seen as [product of all dimensions but the last, last].
struct SourceRows {
  size_t claim = 0;
  uint64_t begin = 0, count = 0;
  uint64_t col_begin = 0;  // the first column that is the source's
};

// A weight to pack from sources, one after another.
struct PackItem {
  PackedWeight* out = nullptr;
  PackArrangement arrangement = PackArrangement::plain;
  uint32_t rows = 0, cols = 0;  // of the packed weight
  WeightRole role = WeightRole::attention;
  uint32_t layer = 0;
  bool transposed = false;  // the single source is [cols, rows]
  std::vector<SourceRows> sources;
  uint32_t expert = kNoExpert;
  uint32_t col_begin = 0;  // of the sources' columns, the first that is packed
};

// A tensor to keep as it is: float32, or for `bits` bfloat16 when that is the compute type.
struct CopyItem {
  size_t claim = 0;
  std::vector<float>* values = nullptr;
  std::vector<uint16_t>* bits =
      nullptr;  // looked-up rows: the one of both that fits the compute type is filled
};

// The biases of one expert, a row of a claim of all experts: of gate and up, whose numbers alternate there,
// the slice's, gate's first; of down, kept where the slice has the expert's first rows.
struct ExpertBiasItem {
  size_t claim = 0;
  uint32_t expert = 0;
  uint32_t intermediate = 0;  // rows of the expert; 0: of down
  std::vector<float>* out = nullptr;
};

// A table of whole numbers, kept as int32. Each must be in [0, limit).
struct TableItem {
  size_t claim = 0;
  std::vector<int32_t>* out = nullptr;  // [rows, cols] of the claim
  uint32_t limit = 0;
};

bool is_held(const TensorClaim& claim, const HeldParts& held);
bool is_held(const PackItem& item, const HeldParts& held);

// What the rank packs of a held item: of an expert's gate_up the slice's rows, of its down the slice's
// columns; of everything else all.
PackItem held_part(const PackItem& item, const HeldParts& held);

class LoadPlan {
 public:
  struct MlpNames {
    std::string gate, up, down;
  };

  // Items that follow belong to this layer: their packed bytes lie together.
  void at_layer(uint32_t layer) { layer_ = layer; }

  // Claims and items that follow belong to this expert of the layer; kNoExpert: to none any more.
  void at_expert(uint32_t expert) { expert_ = expert; }

  size_t claim(std::string tensor, std::vector<uint64_t> shape, WeightRole role, bool block_quantized = false,
               DType released = DType::none);
  // Packs sources of `cols` columns, one below the other.
  void pack(PackedWeight& out, WeightRole role, PackArrangement arrangement, std::vector<SourceRows> sources,
            uint32_t cols);
  // Packs the transpose of `source`, which has `source_cols` columns: [source_cols, source.count].
  void pack_transposed(PackedWeight& out, WeightRole role, SourceRows source, uint32_t source_cols);
  // Claims U8 blocks of fp4 [experts, rows, cols / 32, 16], seen as rows of `seen_cols` columns: `cols`, or a
  // multiple of it.
  size_t claim_fp4_blocks(std::string tensor, uint32_t experts, uint32_t rows, uint32_t cols,
                          uint64_t seen_cols);
  // Claims a stack [experts, cols, rows] that lies turned, see TensorClaim.
  size_t claim_turned(std::string tensor, uint32_t experts, uint32_t rows, uint32_t cols, bool interleaved);
  void when_missing(size_t claim, std::string_view literal) { claims_[claim].when_missing = literal; }
  // Of the expert that `at_expert` named.
  void expert_bias(std::vector<float>& out, size_t claim, uint32_t intermediate);
  // Claims and packs one matrix. Routers and heads are never block-quantised; everything else may be.
  void matrix(PackedWeight& out, WeightRole role, std::string tensor, uint32_t rows, uint32_t cols);
  // Claims and keeps a vector as float32.
  void vector(std::vector<float>& out, WeightRole role, std::string tensor, uint32_t size,
              DType released = DType::none);
  // The same of any shape, its numbers in the order of the file.
  void values(std::vector<float>& out, WeightRole role, std::string tensor, std::vector<uint64_t> shape,
              DType released = DType::none);
  // Claims and keeps a table of numbers below `limit`; files store it as I64 (or I32).
  void table(std::vector<int32_t>& out, WeightRole role, std::string tensor, uint32_t rows, uint32_t cols,
             uint32_t limit);
  // Claims gate, up and down of a SwiGLU MLP and packs gate and up together.
  void mlp(MlpWeights& out, WeightRole role, MlpNames names, uint32_t intermediate, uint32_t hidden);
  void embedding(ModelWeights& weights, size_t claim);
  // Keeps a claimed table of which rows are looked up: bfloat16 when that is the compute type, float32
  // otherwise.
  void rows_of(std::vector<float>& wide, std::vector<uint16_t>& narrow, size_t claim);

  const std::vector<TensorClaim>& claims() const { return claims_; }
  const std::vector<PackItem>& packs() const { return packs_; }
  const std::vector<CopyItem>& copies() const { return copies_; }
  const std::vector<TableItem>& tables() const { return tables_; }
  const std::vector<ExpertBiasItem>& expert_biases() const { return expert_biases_; }
  // The claim of a tensor, or null.
  const TensorClaim* find(std::string_view tensor) const;

 private:
  uint32_t layer_ = 0;
  uint32_t expert_ = kNoExpert;
  std::vector<TensorClaim> claims_;
  std::vector<PackItem> packs_;
  std::vector<CopyItem> copies_;
  std::vector<TableItem> tables_;
  std::vector<ExpertBiasItem> expert_biases_;
  std::unordered_map<std::string, size_t> by_name_;
};

// The plan of a model into `weights`, whose layers it sizes. `weights` must not move while the plan is in
// use.
LoadPlan make_load_plan(const ModelConfig& config, ModelWeights& weights);

// Parts that several families share.

// model.embed_tokens, model.norm, lm_head (or the tied embedding).
void plan_ends(const ModelConfig& config, LoadPlan& plan, ModelWeights& weights);
// input_layernorm and post_attention_layernorm.
void plan_layer_norms(const ModelConfig& config, LoadPlan& plan, const std::string& prefix,
                      AttentionWeights& weights);
// q_proj, k_proj, v_proj in one weight, o_proj; their biases, q_norm and k_norm where the configuration has
// them.
void plan_gqa(const ModelConfig& config, LoadPlan& plan, const std::string& prefix,
              AttentionWeights& weights);
// gate_proj, up_proj, down_proj.
void plan_gated_mlp(LoadPlan& plan, MlpWeights& out, WeightRole role, const std::string& prefix,
                    uint32_t intermediate, uint32_t hidden);
// <prefix><e>.{gate,up,down}_proj for each expert.
void plan_numbered_experts(const ModelConfig& config, LoadPlan& plan, const std::string& prefix,
                           MoeLayerWeights& weights);

}  // namespace tandem
