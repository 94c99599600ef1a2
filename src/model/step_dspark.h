// DSpark's part in a step of the model (DraftKind::dspark, decoder_program.h): the outputs of some layers
// become one row, and every stage keeps that row's key in its window. That is all a stage ever sees of the
// text, and it depends on the rows of the step alone: so it is chunked, rolled back and given back as the
// model's own keys are.
#pragma once

#include <cstdint>

#include "model/model_config.h"
#include "model/model_weights.h"
#include "model/step_tensors.h"
#include "program/program.h"
#include "program/state_caches.h"

namespace tandem {

class DsparkTaps {
 public:
  // Plans the buffers. `config` outlives the step.
  DsparkTaps(ProgramBuilder& builder, const ModelConfig& config, const StepTensors& tensors);
  // Behind every layer: takes the mean of its streams where the drafter reads that layer.
  void append_tap(ProgramBuilder& builder, uint32_t layer) const;
  // Behind the last layer.
  void append_keys(ProgramBuilder& builder, const ModelWeights& weights, const StateCaches& caches) const;

 private:
  const ModelConfig& config_;
  StepTensors tensors_;
  Tensor taps_;     // compute dtype [rows, taps * hidden]
  Tensor context_;  // compute dtype [rows, hidden]
  Tensor key_;      // float32 [rows, head_dim]
};

}  // namespace tandem
