// The second half of a layer as attention sees it. Dense layers run here. For MoE layers the traits of the
// port decide what stands around the exchange: the gate before it, the shared experts inside it, or neither.
#pragma once

#include <cstdint>

#include "model/model_config.h"
#include "model/model_weights.h"
#include "model/step_residual.h"
#include "model/step_tensors.h"
#include "moe/moe_block.h"
#include "program/program.h"

namespace tandem {

class FfnStep {
 public:
  // Plans the buffers, which all layers share. `local`: the parts of MoE layers that attention runs; may be
  // null when the traits leave it none. It outlives the program; `residual` outlives the step.
  FfnStep(ProgramBuilder& builder, const ModelConfig& config, const StepTensors& tensors,
          const ResidualStep& residual, MoeBlock* local);
  // Appends the operations from `normed` to the residual, the way into it included.
  void append(ProgramBuilder& builder, uint32_t layer, const LayerWeights& weights) const;

 private:
  void append_dense(ProgramBuilder& builder, uint32_t layer, const MlpWeights& weights) const;
  void append_moe(ProgramBuilder& builder, uint32_t layer) const;

  const ModelConfig& config_;
  StepTensors tensors_;
  const ResidualStep& residual_;
  MoeBlock* local_;
  Tensor intermediate_;  // compute dtype [rows, dense_intermediate_size]; none without dense layers
  Tensor quantized_;     // activation dtype [rows, hidden]; when activations travel quantised
  Tensor scales_;        // their scales [rows, scale_cols]
  Tensor ids_;           // int32 [rows, top_k]; with the gate on attention
  Tensor weights_;       // float32 [rows, top_k]; with the gate on attention
  Tensor reply_;         // reply dtype [rows, hidden]
  Tensor shared_;        // reply dtype [rows, hidden]; with the shared experts on attention
};

}  // namespace tandem
