// The program of one step of a decoder: embedding, layers (norm, attention, norm, MLP or experts), final norm
// and head of the rows whose logits are wanted. Model::build is its public door.
#pragma once

#include <memory>
#include <span>

#include "kernels/paged_kv_layout.h"
#include "model/model_config.h"
#include "model/model_weights.h"
#include "moe/moe_block.h"
#include "program/program.h"

namespace tandem {

// What a program is built from. All of it outlives the program.
struct DecoderParts {
  const ModelConfig& config;
  const ModelWeights& weights;
  const PagedKvLayout& kv_layout;
  std::span<const KvCacheView> caches;  // [num_layers]
  MoeBlock* local = nullptr;
};

Result<std::shared_ptr<const Program>> build_decoder_program(const DecoderParts& parts,
                                                             const ProgramShape& shape,
                                                             const FfnTraits& traits);

}  // namespace tandem
