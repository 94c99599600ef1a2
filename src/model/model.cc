#include "model/model.h"

#include <algorithm>
#include <bit>
#include <string>
#include <utility>

#include "model/attention_weight_check.h"
#include "model/compressed_state.h"
#include "model/decoder_program.h"
#include "model/kv_groups.h"

namespace tandem {

MoeShape moe_shape(const ModelConfig& config) {
  MoeShape shape;
  shape.hidden_size = config.hidden_size;
  shape.moe_intermediate_size = config.moe_intermediate_size;
  shape.shared_intermediate_size = config.shared_intermediate_size;
  shape.router = config.router;
  shape.swiglu_limit = config.swiglu_limit;
  shape.swiglu_alpha = config.swiglu_alpha;
  shape.num_hash_layers = config.num_hash_layers;
  shape.vocab_size = config.vocab_size;
  shape.gates_shared_expert = config.gates_shared_expert;
  return shape;
}

std::vector<const MoeLayerWeights*> moe_layers(const ModelConfig& config, const ModelWeights& weights) {
  std::vector<const MoeLayerWeights*> layers(config.total_layers(), nullptr);
  for (uint32_t layer = 0; layer < config.total_layers(); ++layer) {
    if (config.is_moe(layer)) layers[layer] = &weights.layers[layer].moe;
  }
  return layers;
}

PagedKvLayout kv_layout(const ModelConfig& config, DType cache_dtype) {
  const AttentionConfig& attention = config.attention;
  PagedKvLayout layout;
  layout.dtype = cache_dtype;
  layout.tokens_per_block = kTokensPerBlock;
  if (attention.kind == AttentionKind::gqa) {
    layout.num_kv_heads = attention.num_kv_heads;
    layout.head_dim = attention.head_dim;
  } else if (attention.kind == AttentionKind::compressed) {
    layout.num_kv_heads = 0;
    layout.head_dim = attention.head_dim;
  } else {
    layout.num_kv_heads = 0;
    layout.head_dim = attention.kv_lora_rank + attention.qk_rope_head_dim;
    layout.rope_dim = attention.qk_rope_head_dim;
  }
  return layout;
}

std::vector<StateGroupSpec> state_groups(const ModelConfig& config, DType cache_dtype) {
  if (config.attention.kind == AttentionKind::compressed) return compressed_state_groups(config, cache_dtype);
  return kv_state_groups(config, kv_layout(config, cache_dtype));
}

namespace {

Status check_cache_dtype(const ModelConfig& config, DType cache_dtype) {
  if (cache_dtype != DType::f8_e4m3) return {};
  const AttentionConfig& attention = config.attention;
  const auto refuse = [&](const std::string& what) {
    return make_error(ErrorCode::unsupported, "engine.kv_cache_dtype: fp8 with " + what + "; auto would do");
  };
  if (attention.kind == AttentionKind::compressed)
    return refuse(config.model_type + ": its window and entries are kept in bf16, which are few a token");
  if (attention.kind == AttentionKind::mla) {
    const uint32_t width = attention.kv_lora_rank + attention.qk_rope_head_dim;
    if (width <= kMostCodedLatent) return {};
    return refuse("kv_lora_rank + qk_rope_head_dim " + std::to_string(width) + ": at most " +
                  std::to_string(kMostCodedLatent) + " can be decoded at once");
  }
  if (attention.head_dim > kMostCodedDim)
    return refuse("head_dim " + std::to_string(attention.head_dim) + ": at most " +
                  std::to_string(kMostCodedDim) + " can be decoded at once");
  return {};
}

}  // namespace

Status check_model_options(const ModelConfig& config, const ModelOptions& options) {
  TANDEM_TRY(check_cache_dtype(config, options.cache_dtype));
  if (!options.qat_simulation) return {};
  if (config.attention.kind != AttentionKind::compressed) {
    return make_error(ErrorCode::unsupported,
                      "engine.qat_simulation: true with " + config.model_type +
                          ": it is DeepSeek-V4 that was trained with rounded keys; false would do");
  }
  const uint32_t size = config.compressed.index_head_dim;
  const bool indexes =
      std::ranges::find(config.compressed.ratios, kSparseRatio) != config.compressed.ratios.end();
  if (indexes && !std::has_single_bit(size)) {
    return make_error(ErrorCode::unsupported,
                      "engine.qat_simulation: true with index_head_dim " + std::to_string(size) +
                          ": the Hadamard rotation needs a power of two; false would do");
  }
  return {};
}

Result<Model> Model::create(ModelConfig config, const ModelWeights& weights, const ModelOptions& options) {
  TANDEM_TRY(check_model_options(config, options));
  TANDEM_TRY(check_attention_weights(config, weights));
  Model model;
  model.weights_ = &weights;
  model.options_ = options;
  // Unless asked otherwise keys and values keep the precision of what attention computes with.
  const DType cache_dtype = options.cache_dtype == DType::none ? weights.compute_dtype : options.cache_dtype;
  model.kv_layout_ = tandem::kv_layout(config, cache_dtype);
  model.state_groups_ = tandem::state_groups(config, cache_dtype);
  model.config_ = std::make_shared<const ModelConfig>(std::move(config));
  return model;
}

Result<std::shared_ptr<const Program>> Model::build(const ProgramShape& shape, const FfnTraits& traits,
                                                    const StateCaches& caches, MoeBlock* local) const {
  return build_decoder_program({*config_, *weights_, state_groups_, caches, local, options_.qat_simulation},
                               shape, traits);
}

Result<std::shared_ptr<const Program>> Model::build_drafts(const ProgramShape& shape, const FfnTraits& traits,
                                                           const StateCaches& caches, MoeBlock* local) const {
  return build_draft_program({*config_, *weights_, state_groups_, caches, local, options_.qat_simulation},
                             shape, traits);
}

Result<std::shared_ptr<const Program>> Model::build_draft_chain(uint32_t sequences, const FfnTraits& traits,
                                                                const StateCaches& caches) const {
  return build_draft_chain_program(
      {*config_, *weights_, state_groups_, caches, nullptr, options_.qat_simulation}, sequences, traits);
}

}  // namespace tandem
