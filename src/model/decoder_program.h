// The program of one step of a decoder: embedding, layers (norm, attention, norm, MLP or experts), final norm
// and head of the rows whose logits are wanted. Model::build is its public door.
#pragma once

#include <memory>
#include <span>

#include "model/model_config.h"
#include "model/model_weights.h"
#include "moe/moe_block.h"
#include "program/program.h"
#include "program/state_caches.h"

namespace tandem {

// What a program is built from. Weights, the memory of the caches and the local block outlive the program.
struct DecoderParts {
  const ModelConfig& config;
  const ModelWeights& weights;
  std::span<const StateGroupSpec> state_groups;
  const StateCaches& caches;
  MoeBlock* local = nullptr;
  bool qat_simulation = false;
};

Result<std::shared_ptr<const Program>> build_decoder_program(const DecoderParts& parts,
                                                             const ProgramShape& shape,
                                                             const FfnTraits& traits);

// The same for the draft layers: Model::build_drafts.
Result<std::shared_ptr<const Program>> build_draft_program(const DecoderParts& parts,
                                                           const ProgramShape& shape,
                                                           const FfnTraits& traits);

// Model::build_draft_chain.
Result<std::shared_ptr<const Program>> build_draft_chain_program(const DecoderParts& parts,
                                                                 uint32_t sequences, const FfnTraits& traits);

}  // namespace tandem
