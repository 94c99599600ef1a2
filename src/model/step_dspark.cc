#include "model/step_dspark.h"

#include <string>

#include "model/step_compressed.h"
#include "program/operations_basic.h"
#include "program/operations_connection.h"
#include "program/quantized_product.h"

namespace tandem {

DsparkTaps::DsparkTaps(ProgramBuilder& builder, const ModelConfig& config, const StepTensors& tensors)
    : config_(config), tensors_(tensors) {
  const auto count = static_cast<uint32_t>(config.draft.target_layers.size());
  taps_ = builder.tensor("draft.taps", tensors.compute_dtype, count * config.hidden_size);
  context_ = builder.tensor("draft.context", tensors.compute_dtype, config.hidden_size);
  key_ = builder.tensor("draft.key", DType::f32, config.attention.head_dim);
}

void DsparkTaps::append_tap(ProgramBuilder& builder, uint32_t layer) const {
  const std::vector<uint32_t>& targets = config_.draft.target_layers;
  for (uint32_t tap = 0; tap < targets.size(); ++tap) {
    if (targets[tap] != layer) continue;
    builder.append(stream_mean("layers." + std::to_string(layer) + ".tap",
                               {.streams = tensors_.residual,
                                .num_streams = config_.hyper_connections.num_streams,
                                .out = taps_,
                                .out_column = tap * config_.hidden_size}));
  }
}

void DsparkTaps::append_keys(ProgramBuilder& builder, const ModelWeights& weights,
                             const StateCaches& caches) const {
  const DraftWeights& draft = weights.draft;
  // `branch` is free behind the last layer.
  append_matmul(builder, "draft.tap_projection",
                {.weights = {&draft.tap_projection, 1}, .in = taps_, .out = tensors_.branch});
  builder.append(rms_norm("draft.tap_norm", {.in = tensors_.branch,
                                             .cols = config_.hidden_size,
                                             .weight = draft.tap_norm,
                                             .epsilon = config_.rms_norm_eps,
                                             .out = context_}));
  for (uint32_t layer = config_.num_layers; layer < config_.total_layers(); ++layer) {
    append_window_key(builder, config_, tensors_,
                      {.name = "layers." + std::to_string(layer) + ".context.",
                       .layer = layer,
                       .in = context_,
                       .key = key_,
                       .rope = tensors_.rope},
                      weights.layers[layer].attention, caches);
  }
}

}  // namespace tandem
