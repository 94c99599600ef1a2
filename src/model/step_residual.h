// How a block is connected to the layers before and after it: a plain residual, or hyper-connections over
// several streams. Before a block: from the residual to `normed`. After it: its result to the residual.
#pragma once

#include <string>
#include <vector>

#include "model/model_config.h"
#include "model/model_weights.h"
#include "model/step_tensors.h"
#include "program/program.h"

namespace tandem {

class ResidualStep {
 public:
  // Plans the buffers, which all sites share. `config` outlives the step.
  ResidualStep(ProgramBuilder& builder, const ModelConfig& config, const StepTensors& tensors);

  // `name`: of the norm's operation. `connection`: of the site; empty with a plain residual.
  void append_enter(ProgramBuilder& builder, const std::string& name,
                    const HyperConnectionWeights& connection, const std::vector<float>& norm) const;
  // first (+ second), [rows, hidden], of the block that was entered last.
  void append_leave(ProgramBuilder& builder, const std::string& name, const Tensor& first,
                    const Tensor& second = {}) const;
  // The rows whose logits are wanted, as one row each before the final norm: float32 [logit rows, hidden].
  Tensor append_head(ProgramBuilder& builder, const HyperConnectionWeights& connection) const;

 private:
  bool plain() const { return config_.hyper_connections.num_streams == 1; }
  bool rounds() const { return tensors_.compute_dtype != DType::f32; }

  const ModelConfig& config_;
  StepTensors tensors_;
  // With several streams.
  Tensor mixes_;       // float32 [rows, streams * (2 + streams)]
  Tensor connection_;  // float32 [rows, streams * (1 + streams)]
  Tensor collapsed_;   // float32 [rows, hidden]
};

}  // namespace tandem
