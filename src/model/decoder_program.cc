#include "model/decoder_program.h"

#include "model/decoder_parts.h"

namespace tandem {

Result<std::shared_ptr<const Program>> build_decoder_program(const DecoderParts& parts,
                                                             const ProgramShape& shape,
                                                             const FfnTraits& traits) {
  TANDEM_TRY(check_parts(parts, traits));
  TANDEM_ASSIGN(ProgramBuilder builder, ProgramBuilder::create(shape, traits));
  const ModelConfig& config = parts.config;
  builder.use_state_groups(static_cast<uint32_t>(parts.state_groups.size()));
  builder.count_layers(config.num_layers);
  const StepTensors tensors = plan_tensors(builder, parts);
  append_embedding(builder, parts, tensors, config.hyper_connections.num_streams, tensors.residual);
  const ResidualStep residual(builder, config, tensors);
  const LayerRange layers{0, config.num_layers};
  if (config.num_draft_layers > 0 && config.draft.kind == DraftKind::dspark) {
    const DsparkTaps taps(builder, config, tensors);
    append_layers(builder, parts, tensors, residual, layers, &taps);
    taps.append_keys(builder, parts.weights, parts.caches);
  } else {
    append_layers(builder, parts, tensors, residual, layers);
    if (config.num_draft_layers > 0)
      append_hidden(builder, parts, tensors.residual, parts.weights.final_norm);
  }
  builder.begin_head();
  const Tensor chosen = residual.append_head(builder, parts.weights.head_connection);
  return builder.finish(append_head(builder, parts, tensors, chosen, parts.weights.final_norm));
}

}  // namespace tandem
