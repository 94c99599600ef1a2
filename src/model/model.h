// Model: a checkpoint's configuration and weights as something that can be run: it says what state a sequence
// needs and builds the program of a step. It describes, it does not run. Families differ by configuration
// alone: the kind of attention, which layers are dense, the router, the multipliers. Immutable after
// creation; any thread may call.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/paged_kv_layout.h"
#include "model/model_config.h"
#include "model/model_weights.h"
#include "moe/moe_block.h"
#include "program/program.h"
#include "program/state_caches.h"
#include "program/state_group.h"

namespace tandem {

// Tokens of a cache block. With 16, a sequence wastes at most 15 tokens of memory and shares prefixes in
// steps of 16; one head's keys of a block (16 x 128 bf16 values) are 4 KiB and a block of latents (16 x 576)
// is 18 KiB, long enough streams that following the block table costs nothing beside reading them.
inline constexpr uint32_t kTokensPerBlock = 16;

struct ModelOptions {
  // DeepSeek-V4: keys, entries and the indexer's vectors are rounded to fp8 and fp4 as in its training
  // (kernels/compressed_args.h, TrainedRounding), though the cache holds them wider.
  bool qat_simulation = false;
  // Of keys and values in the cache: none, the compute dtype; f8_e4m3, codes with scales
  // (kernels/paged_kv_layout.h).
  DType cache_dtype = DType::none;
};

// unsupported: an option that the model knows nothing of, named with what would do. Model::create refuses the
// same; this is for before its weights are loaded.
Status check_model_options(const ModelConfig& config, const ModelOptions& options);

class Model {
 public:
  // `weights` has the attention part and outlives the model and its programs. internal: a weight that the
  // configuration needs is absent or has another shape (named). unsupported: an option that the model knows
  // nothing of.
  static Result<Model> create(ModelConfig config, const ModelWeights& weights,
                              const ModelOptions& options = {});

  const ModelConfig& config() const { return *config_; }
  const ModelWeights& weights() const { return *weights_; }

  // Group 0 first. A step has rows of each, a program caches of each.
  std::span<const StateGroupSpec> state_groups() const { return state_groups_; }
  // Of a block of group 0, in every layer that has one.
  const PagedKvLayout& kv_layout() const { return kv_layout_; }

  // The program of a step against experts with these traits.
  //   caches of every state group, in every layer that holds it; may be shared by the programs of all lanes
  //   local  what attention runs of MoE layers itself; null when the traits put gate and shared experts
  //   behind the port
  // The memory of the caches and local outlive the program. invalid_argument names what does not fit.
  Result<std::shared_ptr<const Program>> build(const ProgramShape& shape, const FfnTraits& traits,
                                               const StateCaches& caches, MoeBlock* local) const;

  // The program of a round of drafting, from the same caches. invalid_argument: drafts are not held.
  //
  // Multi-token prediction: its rows have the hidden rows of the model's row at the same position (of a
  // program of `build`) and the id of the token behind it; their logits are those of the token behind that.
  //
  // DSpark: a sequence of n computed tokens has a row for each of the positions n, n + 1, ... of a block,
  // with the token that was said last and then noise tokens, and StepBatch::key_ranges of block_range. The
  // logits of row i, once build_draft_chain has completed them, are those of the token at position n + 1 + i.
  // Its hidden rows have one value, of the confidence. What it writes beyond the computed tokens is written
  // again when those positions are computed.
  Result<std::shared_ptr<const Program>> build_drafts(const ProgramShape& shape, const FfnTraits& traits,
                                                      const StateCaches& caches, MoeBlock* local) const;

  // DSpark: what completes one row of a block, of at most `sequences` sequences at once. Rows have the logits
  // of a block's row as StepBatch::hidden and the id of the token before; every row's logits are wanted. Its
  // hidden rows have one value: sigmoid(that of the block's row + this) says how likely the row's token is to
  // be accepted. invalid_argument: no such drafts are held.
  Result<std::shared_ptr<const Program>> build_draft_chain(uint32_t sequences, const FfnTraits& traits,
                                                           const StateCaches& caches) const;

 private:
  Model() = default;

  std::shared_ptr<const ModelConfig> config_;
  const ModelWeights* weights_ = nullptr;
  ModelOptions options_;
  PagedKvLayout kv_layout_;
  std::vector<StateGroupSpec> state_groups_;
};

// For MoeBlock::create, on either side: the shape of the MoE layers, and one pointer a layer, null for dense
// layers.
MoeShape moe_shape(const ModelConfig& config);
std::vector<const MoeLayerWeights*> moe_layers(const ModelConfig& config, const ModelWeights& weights);

// What a sequence of such a model needs, from its configuration alone. `cache_dtype`: of keys and values.
std::vector<StateGroupSpec> state_groups(const ModelConfig& config, DType cache_dtype);

// The layout that sequences' state has in the cache of such a model.
PagedKvLayout kv_layout(const ModelConfig& config, DType cache_dtype);

}  // namespace tandem
