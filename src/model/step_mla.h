// Multi-head latent attention of a layer (DeepSeek-V2 and V3, Moonlight, Kimi-K2), with and without a
// low-rank query. Decode, and with deterministic sums prefill too, in the absorbed form; long parts of a
// prompt in the expanded one (program/operations_mla.h).
#pragma once

#include <cstdint>

#include "model/model_config.h"
#include "model/model_weights.h"
#include "model/step_tensors.h"
#include "program/operations_mla.h"
#include "program/program.h"
#include "program/state_caches.h"

namespace tandem {

MlaSizes mla_sizes(const AttentionConfig& attention);

class MlaStep {
 public:
  // Plans the buffers, which all layers share.
  MlaStep(ProgramBuilder& builder, const ModelConfig& config, const StepTensors& tensors);
  // Appends the operations from `normed` to `branch`.
  void append(ProgramBuilder& builder, uint32_t layer, const AttentionWeights& weights,
              const StateCaches& caches) const;

 private:
  const ModelConfig& config_;
  MlaSizes sizes_;
  StepTensors tensors_;
  Tensor query_low_;         // float32 [rows, q_lora_rank]; none without q_lora
  Tensor query_low_normed_;  // compute dtype [rows, q_lora_rank]
  Tensor query_;             // float32 [rows, heads * (nope + rope)]
  Tensor query_rounded_;     // compute dtype, the same columns; query_ itself when that is float32
  Tensor kv_;                // float32 [rows, kv_lora_rank + rope]
  Tensor latent_;            // float32 [rows, kv_lora_rank], normed
  MlaWorkspace workspace_;
  Tensor query_latent_;  // float32 [rows, heads * kv_lora_rank]
  Tensor attended_;      // compute dtype [rows, heads * kv_lora_rank]
  Tensor values_;        // compute dtype [rows, heads * v_head_dim]
};

}  // namespace tandem
