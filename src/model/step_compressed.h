// Attention of a layer of DeepSeek-V4: a low-rank query, one key a token that is its value too, over a window
// of tokens and over entries that pool 4 or 128 tokens; of those of ratio 4 an indexer chooses. The output
// projection works on groups of heads.
//
// Prefill and decode run the same operations. A row's pending values, and the entry that it completes, are
// written before any row attends, and a row sees the entries that were complete when it came: so every
// chunking of a prompt gives the same bits.
#pragma once

#include <cstdint>
#include <string>

#include "model/compressed_state.h"
#include "model/model_config.h"
#include "model/model_weights.h"
#include "model/step_tensors.h"
#include "program/program.h"
#include "program/state_caches.h"

namespace tandem {

// From the rows `in` [rows, hidden], of the compute dtype, to the keys that the window of `layer` holds of
// them, at the rows' positions.
struct WindowKeySpec {
  std::string name;
  uint32_t layer = 0;
  Tensor in;
  Tensor key;   // float32 [rows, head_dim]
  Tensor rope;  // of rope_table
};
void append_window_key(ProgramBuilder& builder, const ModelConfig& config, const StepTensors& tensors,
                       const WindowKeySpec& spec, const AttentionWeights& weights, const StateCaches& caches);

class CompressedStep {
 public:
  // Plans the buffers, which all layers share, and appends the rotary tables. `config` outlives the step.
  CompressedStep(ProgramBuilder& builder, const ModelConfig& config, const StepTensors& tensors);
  // Appends the operations from `normed` to `branch`.
  void append(ProgramBuilder& builder, uint32_t layer, const AttentionWeights& weights,
              const StateCaches& caches) const;

 private:
  void append_query(ProgramBuilder& builder, const std::string& name, uint32_t ratio,
                    const AttentionWeights& weights) const;
  void append_entries(ProgramBuilder& builder, const std::string& name, uint32_t layer, uint32_t ratio,
                      const AttentionWeights& weights, const StateCaches& caches) const;
  void append_choice(ProgramBuilder& builder, const std::string& name, uint32_t layer,
                     const AttentionWeights& weights, const StateCaches& caches) const;
  void append_output(ProgramBuilder& builder, const std::string& name, uint32_t ratio,
                     const AttentionWeights& weights) const;
  // Of queries and window keys of a layer.
  const Tensor& rope_of(uint32_t ratio) const { return ratio == 0 ? tensors_.rope : compressed_rope_; }

  const ModelConfig& config_;
  StepTensors tensors_;
  CompressedGroups groups_;
  Tensor compressed_rope_;   // float32 [rows, rope_dim]: at the rows' positions
  Tensor sparse_rope_;       // at the first position of the rows' windows of 4
  Tensor heavy_rope_;        // of 128
  Tensor query_low_;         // float32 [rows, q_lora_rank]
  Tensor query_low_normed_;  // compute dtype [rows, q_lora_rank]
  Tensor query_;             // float32 [rows, heads * head_dim]
  Tensor key_;               // float32 [rows, head_dim]
  Tensor sparse_pending_;    // float32 [rows, width of a pending token of ratio 4]
  Tensor heavy_pending_;     // of ratio 128
  Tensor index_query_;       // float32 [rows, index_num_heads * index_head_dim]
  Tensor index_weights_;     // float32 [rows, index_num_heads]
  Tensor selected_;          // int32 [rows, index_top_k]
  Tensor attended_;          // float32 [rows, heads * head_dim]
  Tensor attended_rounded_;  // compute dtype, the same columns; attended_ itself when that is float32
  Tensor output_low_;        // compute dtype [rows, groups * output_lora_rank]
};

}  // namespace tandem
