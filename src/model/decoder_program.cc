#include "model/decoder_program.h"

#include <algorithm>
#include <string>
#include <utility>

#include "model/step_compressed.h"
#include "model/step_ffn.h"
#include "model/step_gqa.h"
#include "model/step_mla.h"
#include "model/step_residual.h"
#include "program/operations_attention.h"
#include "program/operations_basic.h"

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
  for (uint32_t layer = 0; layer < config.num_layers; ++layer) {
    if (!config.is_moe(layer)) continue;
    const MoeLayerWeights& weights = parts.weights.layers[layer].moe;
    if (!traits.routes && weights.router.empty()) {
      return refuse("program: the gate is on attention, which holds no router weights of layer " +
                    std::to_string(layer));
    }
    if (runs_shared && weights.shared.empty()) {
      return refuse("program: the shared experts are on attention, which holds none of layer " +
                    std::to_string(layer));
    }
  }
  return {};
}

template <class AttentionStep>
void append_layers(ProgramBuilder& builder, const DecoderParts& parts, const StepTensors& tensors,
                   const ResidualStep& residual) {
  const ModelConfig& config = parts.config;
  const AttentionStep attention(builder, config, tensors);
  const FfnStep ffn(builder, config, tensors, residual, parts.local);
  for (uint32_t layer = 0; layer < config.num_layers; ++layer) {
    const LayerWeights& weights = parts.weights.layers[layer];
    const std::string name = "layers." + std::to_string(layer) + ".";
    residual.append_enter(builder, name + "input_norm", weights.attention_connection,
                          weights.attention.input_norm);
    attention.append(builder, layer, weights.attention, parts.caches);
    residual.append_leave(builder, name + "attention.residual", tensors.branch);
    residual.append_enter(builder, name + "post_attention_norm", weights.ffn_connection,
                          weights.attention.post_attention_norm);
    ffn.append(builder, layer, weights);
  }
}

// Final norm and head, of the rows whose logits are wanted only: the head is a large part of a small model.
Tensor append_head(ProgramBuilder& builder, const DecoderParts& parts, const StepTensors& tensors,
                   const ResidualStep& residual) {
  const ModelConfig& config = parts.config;
  const Tensor chosen = residual.append_head(builder, parts.weights.head_connection);
  const Tensor normed =
      builder.tensor("head.normed", tensors.compute_dtype, config.hidden_size, TensorRows::logits);
  const Tensor logits = builder.tensor("head.logits", DType::f32, config.vocab_size, TensorRows::logits);
  builder.append(rms_norm("head.norm", {.in = chosen,
                                        .cols = config.hidden_size,
                                        .weight = parts.weights.final_norm,
                                        .epsilon = config.rms_norm_eps,
                                        .out = normed}));
  builder.append(matmul("head.logits", {.weights = {&parts.weights.head, 1}, .in = normed, .out = logits}));
  if (config.logits_divisor != 1.0f) builder.append(divide("head.divide", logits, config.logits_divisor));
  return logits;
}

}  // namespace

Result<std::shared_ptr<const Program>> build_decoder_program(const DecoderParts& parts,
                                                             const ProgramShape& shape,
                                                             const FfnTraits& traits) {
  TANDEM_TRY(check_caches(parts));
  TANDEM_TRY(check_traits(parts, traits));
  TANDEM_ASSIGN(ProgramBuilder builder, ProgramBuilder::create(shape, traits));
  const ModelConfig& config = parts.config;
  const ModelWeights& weights = parts.weights;
  const RopeConfig& rope = config.attention.rope;
  builder.use_state_groups(static_cast<uint32_t>(parts.state_groups.size()));
  builder.count_layers(config.num_layers);

  StepTensors tensors;
  tensors.compute_dtype = weights.compute_dtype;
  tensors.rounds_as_trained = parts.qat_simulation;
  const uint32_t streams = config.hyper_connections.num_streams;
  tensors.residual = builder.tensor("residual", DType::f32, streams * config.hidden_size);
  tensors.normed = builder.tensor("normed", weights.compute_dtype, config.hidden_size);
  tensors.rope = builder.tensor("rope", DType::f32, rope.dim);
  tensors.branch = builder.tensor("branch", DType::f32, config.hidden_size);

  const bool wide = weights.compute_dtype == DType::f32;
  builder.append(
      embedding("embedding", {.dtype = weights.compute_dtype,
                              .table = wide ? static_cast<const void*>(weights.embedding_f32.data())
                                            : static_cast<const void*>(weights.embedding_bf16.data()),
                              .multiplier = config.embedding_multiplier,
                              .copies = streams,
                              .out = tensors.residual}));
  builder.append(rope_table("rope_table", rope.inverse_frequencies(), rope.cos_sin_factor(), tensors.rope));
  const ResidualStep residual(builder, config, tensors);
  switch (config.attention.kind) {
    case AttentionKind::gqa:
      append_layers<GqaStep>(builder, parts, tensors, residual);
      break;
    case AttentionKind::mla:
      append_layers<MlaStep>(builder, parts, tensors, residual);
      break;
    case AttentionKind::compressed:
      append_layers<CompressedStep>(builder, parts, tensors, residual);
      break;
  }
  const Tensor logits = append_head(builder, parts, tensors, residual);
  return builder.finish(logits);
}

}  // namespace tandem
