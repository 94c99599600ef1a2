// Grouped-query attention of a layer (Qwen3-MoE, OLMoE, Mixtral, GraniteMoE): q, k, v in one product,
// optional biases, optional RMS norm of each head of q and k or of all of them together, rotation, cache
// write, attention, output projection.
#pragma once

#include <cstdint>

#include "model/model_config.h"
#include "model/model_weights.h"
#include "model/step_tensors.h"
#include "program/program.h"
#include "program/state_caches.h"

namespace tandem {

class GqaStep {
 public:
  // Plans the buffers, which all layers share.
  GqaStep(ProgramBuilder& builder, const ModelConfig& config, const StepTensors& tensors);
  // Appends the operations from `normed` to `branch`.
  void append(ProgramBuilder& builder, uint32_t layer, const AttentionWeights& weights,
              const StateCaches& caches) const;

 private:
  const ModelConfig& config_;
  StepTensors tensors_;
  Tensor qkv_;       // float32 [rows, (heads + 2 * kv_heads) * head_dim]
  Tensor rotated_;   // float32: q, then k, in the first (heads + kv_heads) * head_dim columns; qkv_ itself
                     // without norms
  Tensor attended_;  // compute dtype [rows, heads * head_dim]
};

}  // namespace tandem
