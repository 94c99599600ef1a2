// What the programs of a model and of its drafters are put together from. Not for anybody else.
#pragma once

#include <string>
#include <vector>

#include "model/decoder_program.h"
#include "model/step_dspark.h"
#include "model/step_residual.h"
#include "model/step_tensors.h"
#include "program/program.h"

namespace tandem {

struct LayerRange {
  uint32_t begin = 0, end = 0;
};

// Caches of every group, and a side of the experts that this model can work with.
Status check_parts(const DecoderParts& parts, const FfnTraits& traits);
StepTensors plan_tensors(ProgramBuilder& builder, const DecoderParts& parts);
// And the table of rotations.
void append_embedding(ProgramBuilder& builder, const DecoderParts& parts, const StepTensors& tensors,
                      uint32_t copies, const Tensor& out);
// `taps`: what a drafter reads behind each layer; null: none does.
void append_layers(ProgramBuilder& builder, const DecoderParts& parts, const StepTensors& tensors,
                   const ResidualStep& residual, LayerRange layers, const DsparkTaps* taps = nullptr);
// Norm and head, of the rows `chosen` whose logits are wanted only: the head is a large part of a small
// model.
Tensor append_head(ProgramBuilder& builder, const DecoderParts& parts, const StepTensors& tensors,
                   const Tensor& chosen, const std::vector<float>& norm);
// What multi-token prediction reads of rows whose last residual is `in`, as float32.
void append_hidden(ProgramBuilder& builder, const DecoderParts& parts, const Tensor& in,
                   const std::vector<float>& norm);

}  // namespace tandem
