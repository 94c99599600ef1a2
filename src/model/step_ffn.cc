#include "model/step_ffn.h"

#include <algorithm>
#include <string>

#include "program/operations_ffn.h"
#include "program/quantized_product.h"

namespace tandem {

FfnStep::FfnStep(ProgramBuilder& builder, const ModelConfig& config, const StepTensors& tensors,
                 const ResidualStep& residual, MoeBlock* local)
    : config_(config), tensors_(tensors), residual_(residual), local_(local) {
  const FfnTraits& traits = builder.ffn_traits();
  const auto has = [&](FfnKind kind) {
    return std::ranges::find(config.layer_ffn, kind) != config.layer_ffn.end();
  };
  if (has(FfnKind::dense)) {
    intermediate_ = builder.tensor("ffn.intermediate", tensors.compute_dtype, config.dense_intermediate_size);
  }
  if (!has(FfnKind::moe)) return;
  if (!traits.routes) {
    ids_ = builder.tensor("ffn.routing_ids", DType::i32, config.router.top_k);
    weights_ = builder.tensor("ffn.routing_weights", DType::f32, config.router.top_k);
  }
  if (const ActivationFormat format = traits.activation_format; is_quantized(format)) {
    quantized_ = builder.tensor("ffn.quantized", traits.activation_dtype, config.hidden_size);
    scales_ =
        builder.tensor("ffn.quantized_scales", scale_dtype(format), scale_cols(format, config.hidden_size));
  }
  reply_ = builder.tensor("ffn.reply", traits.reply_dtype, config.hidden_size);
  if (!traits.runs_shared_experts && config.shared_intermediate_size != 0) {
    shared_ = builder.tensor("ffn.shared", traits.reply_dtype, config.hidden_size);
  }
}

void FfnStep::append(ProgramBuilder& builder, uint32_t layer, const LayerWeights& weights) const {
  if (config_.is_moe(layer)) {
    append_moe(builder, layer);
  } else {
    append_dense(builder, layer, weights.dense);
  }
}

void FfnStep::append_dense(ProgramBuilder& builder, uint32_t layer, const MlpWeights& weights) const {
  const std::string name = "layers." + std::to_string(layer) + ".mlp";
  append_dense_mlp(builder, name,
                   {.weights = &weights,
                    .identity_rows = builder.identity_rows(),
                    .in = tensors_.normed,
                    .intermediate = intermediate_,
                    .out = tensors_.branch});
  residual_.append_leave(builder, name + ".residual", tensors_.branch);
}

void FfnStep::append_moe(ProgramBuilder& builder, uint32_t layer) const {
  const std::string name = "layers." + std::to_string(layer) + ".moe.";
  const auto index = static_cast<LayerIndex>(layer);
  if (!ids_.empty()) builder.append(route(name + "route", *local_, index, tensors_.normed, ids_, weights_));
  const ActivationFormat format = builder.ffn_traits().activation_format;
  // Once, here: gate and shared experts of this side see the row as it was.
  if (is_quantized(format)) {
    builder.append(
        quantize(name + "quantize",
                 {.format = format, .in = tensors_.normed, .values = quantized_, .scales = scales_}));
  }
  builder.append(submit(name + "submit", {.layer = index,
                                          .in = is_quantized(format) ? quantized_ : tensors_.normed,
                                          .format = format,
                                          .scales = scales_,
                                          .ids = ids_,
                                          .weights = weights_,
                                          .sends_token_ids = builder.ffn_traits().wants_token_ids,
                                          .out = reply_}));
  // Between submit and collect: it overlaps the exchange.
  if (!shared_.empty())
    builder.append(shared_experts(name + "shared", *local_, index, tensors_.normed, shared_));
  builder.append(collect(name + "collect"));
  residual_.append_leave(builder, name + "residual", reply_, shared_);
}

}  // namespace tandem
