#include "model/step_residual.h"

#include "program/operations_basic.h"
#include "program/operations_connection.h"

namespace tandem {

ResidualStep::ResidualStep(ProgramBuilder& builder, const ModelConfig& config, const StepTensors& tensors)
    : config_(config), tensors_(tensors) {
  if (plain()) return;
  const uint32_t streams = config.hyper_connections.num_streams;
  mixes_ = builder.tensor("connection.mixes", DType::f32, streams * (2 + streams));
  connection_ = builder.tensor("connection", DType::f32, streams * (1 + streams));
  collapsed_ = builder.tensor("connection.collapsed", DType::f32, config.hidden_size);
}

void ResidualStep::append_enter(ProgramBuilder& builder, const std::string& name,
                                const HyperConnectionWeights& connection,
                                const std::vector<float>& norm) const {
  if (!plain()) {
    builder.append(connection_mix(name + ".connection_mix", {.streams = tensors_.residual,
                                                             .weights = connection.mix,
                                                             .epsilon = config_.rms_norm_eps,
                                                             .mixes = mixes_}));
    builder.append(connection_collapse(name + ".connection_collapse",
                                       {.streams = tensors_.residual,
                                        .mixes = mixes_,
                                        .base = connection.base,
                                        .scale = connection.scale,
                                        .num_streams = config_.hyper_connections.num_streams,
                                        .iterations = config_.hyper_connections.sinkhorn_iterations,
                                        .epsilon = config_.hyper_connections.epsilon,
                                        .round_to_bf16 = rounds(),
                                        .out = collapsed_,
                                        .connection = connection_}));
  }
  builder.append(rms_norm(name, {.in = plain() ? tensors_.residual : collapsed_,
                                 .cols = config_.hidden_size,
                                 .weight = norm,
                                 .epsilon = config_.rms_norm_eps,
                                 .out = tensors_.normed}));
}

void ResidualStep::append_leave(ProgramBuilder& builder, const std::string& name, const Tensor& first,
                                const Tensor& second) const {
  if (plain()) {
    builder.append(residual_add(name, {.residual = tensors_.residual,
                                       .first = first,
                                       .second = second,
                                       .multiplier = config_.residual_multiplier}));
    return;
  }
  builder.append(connection_expand(name, {.streams = tensors_.residual,
                                          .connection = connection_,
                                          .num_streams = config_.hyper_connections.num_streams,
                                          .first = first,
                                          .second = second,
                                          .round_to_bf16 = rounds()}));
}

Tensor ResidualStep::append_head(ProgramBuilder& builder, const HyperConnectionWeights& connection) const {
  const Tensor chosen = builder.tensor("head.rows", DType::f32, tensors_.residual.cols, TensorRows::logits);
  builder.append(gather_logit_rows("head.gather", tensors_.residual, chosen));
  if (plain()) return chosen;
  const uint32_t streams = config_.hyper_connections.num_streams;
  const Tensor mixes = builder.tensor("head.mixes", DType::f32, streams, TensorRows::logits);
  const Tensor collapsed =
      builder.tensor("head.collapsed", DType::f32, config_.hidden_size, TensorRows::logits);
  builder.append(connection_mix(
      "head.connection_mix",
      {.streams = chosen, .weights = connection.mix, .epsilon = config_.rms_norm_eps, .mixes = mixes}));
  builder.append(
      connection_collapse("head.connection_collapse", {.streams = chosen,
                                                       .mixes = mixes,
                                                       .base = connection.base,
                                                       .scale = connection.scale,
                                                       .num_streams = streams,
                                                       .epsilon = config_.hyper_connections.epsilon,
                                                       .round_to_bf16 = rounds(),
                                                       .out = collapsed,
                                                       .connection = {}}));
  return collapsed;
}

}  // namespace tandem
