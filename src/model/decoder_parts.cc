#include "model/decoder_parts.h"

#include <algorithm>
#include <utility>

#include "model/step_compressed.h"
#include "model/step_ffn.h"
#include "model/step_gqa.h"
#include "model/step_mla.h"
#include "program/operations_attention.h"
#include "program/operations_basic.h"
#include "program/quantized_product.h"

namespace tandem {
namespace {

std::unexpected<Error> refuse(std::string message) {
  return make_error(ErrorCode::invalid_argument, std::move(message));
}

Status check_caches(const DecoderParts& parts) {
  if (const Status checked = parts.caches.check(parts.state_groups); !checked)
    return refuse("program: " + checked.error().message);
  return {};
}

Status check_traits(const DecoderParts& parts, const FfnTraits& traits) {
  const ModelConfig& config = parts.config;
  if (std::ranges::find(config.layer_ffn, FfnKind::moe) == config.layer_ffn.end()) return {};
  const ActivationFormat format = traits.activation_format;
  if (traits.activation_dtype != value_dtype(format, parts.weights.compute_dtype)) {
    return refuse("program: the experts take " + std::string(dtype_name(traits.activation_dtype)) +
                  " activations and attention computes in " +
                  std::string(dtype_name(parts.weights.compute_dtype)));
  }
  if (is_quantized(format) && traits.routes) {
    return refuse("program: " + std::string(activation_format_name(format)) +
                  " activations with the gate behind the port: the router must see the rows before they are "
                  "rounded");
  }
  if (traits.reply_dtype != DType::bf16 && traits.reply_dtype != DType::f32 &&
      traits.reply_dtype != DType::f64) {
    return refuse("program: replies of " + std::string(dtype_name(traits.reply_dtype)) +
                  ": bf16, f32 or f64 can be added");
  }
  if (traits.wants_token_ids && !traits.routes) {
    return refuse("program: token ids beside a routing: a payload carries exactly one of them");
  }
  if (traits.routes && !traits.wants_token_ids && config.num_hash_layers != 0) {
    return refuse("program: the experts of " + std::to_string(config.num_hash_layers) +
                  " layers follow from token ids, the gate is behind the port, and no token ids travel");
  }
  const bool runs_shared = !traits.runs_shared_experts && config.shared_intermediate_size != 0;
  if (traits.routes && !runs_shared) return {};
  if (parts.local == nullptr) {
    return refuse(std::string("program: ") + (traits.routes ? "the shared experts are" : "the gate is") +
                  " on attention, which needs its own MoE block");
  }
  const MoeBlockOptions& local = parts.local->options();
  if (local.compute_dtype != parts.weights.compute_dtype) {
    return refuse("program: attention's MoE block computes in " +
                  std::string(dtype_name(local.compute_dtype)) + ", not " +
                  std::string(dtype_name(parts.weights.compute_dtype)));
  }
  if (runs_shared && (local.reply_dtype != traits.reply_dtype || local.sum_mode != traits.sum_mode)) {
    return refuse("program: the shared experts on attention give " +
                  std::string(dtype_name(local.reply_dtype)) + " and the experts reply in " +
                  std::string(dtype_name(traits.reply_dtype)) +
                  ": both need one dtype and one way of adding");
  }
  // A part that is absent here would otherwise show only when the first step reaches it.
  for (uint32_t layer = 0; layer < config.total_layers(); ++layer) {
    if (!config.is_moe(layer)) continue;
    const MoeLayerWeights& weights = parts.weights.layers[layer].moe;
    if (!traits.routes && weights.router.empty()) {
      return refuse("program: the gate is on attention, which holds no router weights of layer " +
                    std::to_string(layer));
    }
    const bool gated = !config.gates_shared_expert || !weights.shared_gate.empty();
    if (runs_shared && (weights.shared.empty() || !gated)) {
      return refuse("program: the shared experts are on attention, which holds none of layer " +
                    std::to_string(layer));
    }
  }
  return {};
}

template <class AttentionStep>
void append_layers_of(ProgramBuilder& builder, const DecoderParts& parts, const StepTensors& tensors,
                      const ResidualStep& residual, LayerRange layers, const DsparkTaps* taps) {
  const ModelConfig& config = parts.config;
  const AttentionStep attention(builder, config, tensors);
  const FfnStep ffn(builder, config, tensors, residual, parts.local);
  for (uint32_t layer = layers.begin; layer < layers.end; ++layer) {
    const LayerWeights& weights = parts.weights.layers[layer];
    const std::string name = "layers." + std::to_string(layer) + ".";
    residual.append_enter(builder, name + "input_norm", weights.attention_connection,
                          weights.attention.input_norm);
    attention.append(builder, layer, weights.attention, parts.caches);
    residual.append_leave(builder, name + "attention.residual", tensors.branch);
    residual.append_enter(builder, name + "post_attention_norm", weights.ffn_connection,
                          weights.attention.post_attention_norm);
    ffn.append(builder, layer, weights);
    if (taps != nullptr) taps->append_tap(builder, layer);
  }
}

}  // namespace

Status check_parts(const DecoderParts& parts, const FfnTraits& traits) {
  TANDEM_TRY(check_caches(parts));
  return check_traits(parts, traits);
}

void append_layers(ProgramBuilder& builder, const DecoderParts& parts, const StepTensors& tensors,
                   const ResidualStep& residual, LayerRange layers, const DsparkTaps* taps) {
  switch (parts.config.attention.kind) {
    case AttentionKind::gqa:
      return append_layers_of<GqaStep>(builder, parts, tensors, residual, layers, taps);
    case AttentionKind::mla:
      return append_layers_of<MlaStep>(builder, parts, tensors, residual, layers, taps);
    case AttentionKind::compressed:
      return append_layers_of<CompressedStep>(builder, parts, tensors, residual, layers, taps);
  }
}

StepTensors plan_tensors(ProgramBuilder& builder, const DecoderParts& parts) {
  const ModelConfig& config = parts.config;
  StepTensors tensors;
  tensors.compute_dtype = parts.weights.compute_dtype;
  tensors.rounds_as_trained = parts.qat_simulation;
  tensors.residual =
      builder.tensor("residual", DType::f32, config.hyper_connections.num_streams * config.hidden_size);
  tensors.normed = builder.tensor("normed", parts.weights.compute_dtype, config.hidden_size);
  tensors.rope = builder.tensor("rope", DType::f32, config.attention.rope.dim);
  tensors.branch = builder.tensor("branch", DType::f32, config.hidden_size);
  return tensors;
}

void append_embedding(ProgramBuilder& builder, const DecoderParts& parts, const StepTensors& tensors,
                      uint32_t copies, const Tensor& out) {
  const ModelWeights& weights = parts.weights;
  const RopeConfig& rope = parts.config.attention.rope;
  const bool wide = weights.compute_dtype == DType::f32;
  builder.append(
      embedding("embedding", {.dtype = weights.compute_dtype,
                              .table = wide ? static_cast<const void*>(weights.embedding_f32.data())
                                            : static_cast<const void*>(weights.embedding_bf16.data()),
                              .multiplier = parts.config.embedding_multiplier,
                              .copies = copies,
                              .out = out}));
  builder.append(rope_table("rope_table", rope.inverse_frequencies(), rope.cos_sin_factor(), tensors.rope));
}

Tensor append_head(ProgramBuilder& builder, const DecoderParts& parts, const StepTensors& tensors,
                   const Tensor& chosen, const std::vector<float>& norm) {
  const ModelConfig& config = parts.config;
  const Tensor normed =
      builder.tensor("head.normed", tensors.compute_dtype, config.hidden_size, TensorRows::logits);
  const Tensor logits = builder.tensor("head.logits", DType::f32, config.vocab_size, TensorRows::logits);
  builder.append(rms_norm("head.norm", {.in = chosen,
                                        .cols = config.hidden_size,
                                        .weight = norm,
                                        .epsilon = config.rms_norm_eps,
                                        .out = normed}));
  append_matmul(builder, "head.logits", {.weights = {&parts.weights.head, 1}, .in = normed, .out = logits});
  if (config.logits_divisor != 1.0f) builder.append(divide("head.divide", logits, config.logits_divisor));
  return logits;
}

// With one stream: behind the norm, as
// lmdeploy, vLLM and SGLang give them to multi-token prediction. No released text says which it is, and no
// trained drafter could be measured here: the other choice would show as drafts that are seldom right, never
// as other answers. With several streams (DeepSeek-V4): the streams as they are.
void append_hidden(ProgramBuilder& builder, const DecoderParts& parts, const Tensor& in,
                   const std::vector<float>& norm) {
  if (parts.config.hyper_connections.num_streams > 1) return builder.export_hidden(in);
  const Tensor hidden = builder.tensor("hidden", DType::f32, parts.config.hidden_size, in.rows);
  builder.append(rms_norm("hidden", {.in = in,
                                     .cols = parts.config.hidden_size,
                                     .weight = norm,
                                     .epsilon = parts.config.rms_norm_eps,
                                     .out = hidden}));
  builder.export_hidden(hidden);
}

}  // namespace tandem
