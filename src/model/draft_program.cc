// The programs of drafters. Multi-token prediction: a layer that reads the model's hidden row. DSpark: a
// block of rows, and the chain of tokens behind it.
#include <string>
#include <utility>

#include "model/decoder_parts.h"
#include "program/operations_basic.h"
#include "program/quantized_product.h"

namespace tandem {
namespace {

using Built = Result<std::shared_ptr<const Program>>;

Status check_held(const DecoderParts& parts) {
  if (parts.config.num_draft_layers > 0) return {};
  return make_error(ErrorCode::invalid_argument, "program: drafts are not held");
}

// From the hidden rows and the embedding of the tokens behind them to the residual of the draft layer.
void append_joined(ProgramBuilder& builder, const DecoderParts& parts, const StepTensors& tensors) {
  const uint32_t hidden = parts.config.hidden_size, streams = parts.config.hyper_connections.num_streams;
  const DraftWeights& draft = parts.weights.draft;
  const Tensor given = builder.tensor("draft.hidden", DType::f32, streams * hidden);
  const Tensor joined = builder.tensor("draft.joined", tensors.compute_dtype, (1 + streams) * hidden);
  builder.append(load_hidden("draft.load_hidden", given));
  append_embedding(builder, parts, tensors, /*copies=*/1, tensors.branch);
  builder.append(rms_norm("draft.embedding_norm", {.in = tensors.branch,
                                                   .cols = hidden,
                                                   .weight = draft.embedding_norm,
                                                   .epsilon = parts.config.rms_norm_eps,
                                                   .out = joined}));
  builder.append(rms_norm("draft.hidden_norm", {.in = given,
                                                .heads = streams,
                                                .cols = hidden,
                                                .weight = draft.hidden_norm,
                                                .epsilon = parts.config.rms_norm_eps,
                                                .out = joined,
                                                .out_column = hidden}));
  if (streams == 1) {
    append_matmul(builder, "draft.join",
                  {.weights = {&draft.join, 1}, .in = joined, .out = tensors.residual});
    return;
  }
  append_matmul(builder, "draft.embedding_projection",
                {.weights = {&draft.embedding_projection, 1}, .in = joined, .out = tensors.branch});
  append_matmul(builder, "draft.hidden_projection",
                {.weights = draft.hidden_projection,
                 .in = joined,
                 .in_column = hidden,
                 .in_batch_stride = hidden,
                 .out = tensors.residual,
                 .out_batch_stride = hidden});
  builder.append(add_to_streams("draft.join", tensors.residual, tensors.branch));
}

Built build_mtp(const DecoderParts& parts, const ProgramShape& shape, const FfnTraits& traits) {
  const ModelConfig& config = parts.config;
  TANDEM_ASSIGN(ProgramBuilder builder, ProgramBuilder::create(shape, traits));
  builder.use_state_groups(static_cast<uint32_t>(parts.state_groups.size()));
  builder.count_layers(config.num_draft_layers);
  builder.read_hidden();
  const StepTensors tensors = plan_tensors(builder, parts);
  append_joined(builder, parts, tensors);
  const ResidualStep residual(builder, config, tensors);
  append_layers(builder, parts, tensors, residual, {config.num_layers, config.total_layers()});
  const DraftWeights& draft = parts.weights.draft;
  const Tensor chosen = residual.append_head(builder, draft.head_connection);
  Tensor last = chosen;
  if (config.hyper_connections.num_streams > 1) {
    last = builder.tensor("hidden", DType::f32, tensors.residual.cols, TensorRows::logits);
    builder.append(gather_logit_rows("hidden", tensors.residual, last));
  }
  append_hidden(builder, parts, last, draft.head_norm);
  return builder.finish(append_head(builder, parts, tensors, chosen, draft.head_norm));
}

// A row for each token of a block: its own rows and the window before them are what it sees, whatever its
// place in the block.
Built build_block(const DecoderParts& parts, const ProgramShape& shape, const FfnTraits& traits) {
  const ModelConfig& config = parts.config;
  const DraftWeights& draft = parts.weights.draft;
  TANDEM_ASSIGN(ProgramBuilder builder, ProgramBuilder::create(shape, traits));
  builder.use_state_groups(static_cast<uint32_t>(parts.state_groups.size()));
  builder.count_layers(config.num_draft_layers);
  builder.read_key_ranges();
  StepTensors tensors = plan_tensors(builder, parts);
  tensors.sees_key_ranges = true;
  append_embedding(builder, parts, tensors, config.hyper_connections.num_streams, tensors.residual);
  const ResidualStep residual(builder, config, tensors);
  append_layers(builder, parts, tensors, residual, {config.num_layers, config.total_layers()});
  const Tensor chosen = residual.append_head(builder, draft.head_connection);
  // The part of a row's confidence that does not hang on the token before it.
  const Tensor confidence = builder.tensor("draft.confidence", DType::f32, 1, TensorRows::logits);
  builder.append(
      row_dot("draft.confidence", chosen, std::span(draft.confidence).first(config.hidden_size), confidence));
  builder.export_hidden(confidence);
  return builder.finish(append_head(builder, parts, tensors, chosen, draft.head_norm));
}

}  // namespace

Built build_draft_program(const DecoderParts& parts, const ProgramShape& shape, const FfnTraits& traits) {
  TANDEM_TRY(check_held(parts));
  TANDEM_TRY(check_parts(parts, traits));
  return parts.config.draft.kind == DraftKind::dspark ? build_block(parts, shape, traits)
                                                      : build_mtp(parts, shape, traits);
}

Built build_draft_chain_program(const DecoderParts& parts, uint32_t sequences, const FfnTraits& traits) {
  TANDEM_TRY(check_held(parts));
  const ModelConfig& config = parts.config;
  if (config.draft.kind != DraftKind::dspark) {
    return make_error(ErrorCode::invalid_argument,
                      "program: the drafter of " + config.model_type + " has no chain: it is part of DSpark");
  }
  const ModelWeights& weights = parts.weights;
  const DraftWeights& draft = weights.draft;
  const uint32_t rank = config.draft.markov_rank;
  const bool wide = weights.compute_dtype == DType::f32;
  TANDEM_ASSIGN(ProgramBuilder builder, ProgramBuilder::create({sequences, sequences}, traits));
  builder.read_hidden();
  const Tensor base = builder.tensor("chain.base", DType::f32, config.vocab_size);
  const Tensor before = builder.tensor("chain.before", DType::f32, rank);
  const Tensor rounded = wide ? before : builder.tensor("chain.before_rounded", weights.compute_dtype, rank);
  const Tensor logits = builder.tensor("chain.logits", DType::f32, config.vocab_size, TensorRows::logits);
  const Tensor confidence = builder.tensor("chain.confidence", DType::f32, 1);
  builder.append(load_hidden("chain.base", base));
  builder.append(
      embedding("chain.before", {.dtype = weights.compute_dtype,
                                 .table = wide ? static_cast<const void*>(draft.markov_in_f32.data())
                                               : static_cast<const void*>(draft.markov_in_bf16.data()),
                                 .out = before}));
  if (!wide) builder.append(convert("chain.before_round", before, rounded));
  builder.append(row_dot("chain.confidence", before, std::span(draft.confidence).subspan(config.hidden_size),
                         confidence));
  // Every row's logits are wanted: rows of the step and rows of logits are the same.
  append_matmul(builder, "chain.markov", {.weights = {&draft.markov_out, 1}, .in = rounded, .out = logits});
  builder.append(residual_add("chain.add", {.residual = logits, .first = base, .second = {}}));
  builder.export_hidden(confidence);
  return builder.finish(logits);
}

}  // namespace tandem
