#include "model/compressed_state.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

namespace tandem {
namespace {

// A block of the window: as the other families' (model.h), long enough streams and little waste.
constexpr uint32_t kWindowTokensPerBlock = 16;
// Ten KiB a token at real width: two windows of the overlapping compressor.
constexpr uint32_t kSparsePendingTokensPerBlock = 8;
// Four KiB a token at real width.
constexpr uint32_t kHeavyPendingTokensPerBlock = 16;
// 32 entries of ratio 4, one of ratio 128.
constexpr uint32_t kEntryTokensPerBlock = kStateAlignment;

std::vector<uint32_t> layers_of(const ModelConfig& config, uint32_t ratio) {
  std::vector<uint32_t> layers;
  for (uint32_t layer = 0; layer < config.num_layers; ++layer) {
    if (config.compressed.ratios[layer] == ratio) layers.push_back(layer);
  }
  return layers;
}

bool has_ratio(const ModelConfig& config, uint32_t ratio) {
  const auto& ratios = config.compressed.ratios;
  return std::find(ratios.begin(), ratios.begin() + config.num_layers, ratio) !=
         ratios.begin() + config.num_layers;
}

StateGroupSpec group(std::string name, std::vector<uint32_t> layers, uint32_t tokens_per_block,
                     size_t values_per_block, DType dtype, uint32_t retain_tokens) {
  StateGroupSpec spec;
  spec.name = std::move(name);
  spec.layers = std::move(layers);
  spec.tokens_per_block = tokens_per_block;
  spec.bytes_per_block = dtype_bytes(dtype, values_per_block);
  spec.retain_tokens = retain_tokens;
  // Where every block begins and no entry is half made.
  spec.snapshot_every = kStateAlignment;
  spec.dtype = dtype;
  return spec;
}

}  // namespace

PendingLayout pending_layout(const ModelConfig& config, uint32_t ratio) {
  const uint32_t width = compressor_width(ratio, config.attention.head_dim);
  PendingLayout layout;
  layout.scores = width;
  layout.width = 2 * width;
  if (has_indexer(ratio)) {
    const uint32_t index_width = compressor_width(ratio, config.compressed.index_head_dim);
    layout.index_keys = layout.width;
    layout.index_scores = layout.index_keys + index_width;
    layout.width += 2 * index_width;
  }
  return layout;
}

uint32_t index_key_offset(const ModelConfig& config) {
  return kEntryTokensPerBlock / kSparseRatio * config.attention.head_dim;
}

CompressedGroups compressed_groups(const ModelConfig& config) {
  CompressedGroups groups;
  uint32_t next = 1;
  if (has_ratio(config, kSparseRatio)) {
    groups.csa_pending = next++;
    groups.csa_entries = next++;
  }
  if (has_ratio(config, kHeavyRatio)) {
    groups.hca_pending = next++;
    groups.hca_entries = next++;
  }
  return groups;
}

std::vector<StateGroupSpec> compressed_state_groups(const ModelConfig& config, DType cache_dtype) {
  const uint32_t head_dim = config.attention.head_dim;
  std::vector<uint32_t> all(config.total_layers());
  std::iota(all.begin(), all.end(), 0u);
  std::vector<StateGroupSpec> groups;
  groups.push_back(group("window", std::move(all), kWindowTokensPerBlock,
                         size_t{kWindowTokensPerBlock} * head_dim, cache_dtype, config.compressed.window));
  if (has_ratio(config, kSparseRatio)) {
    const size_t pending = size_t{kSparsePendingTokensPerBlock} * pending_layout(config, kSparseRatio).width;
    groups.push_back(group("csa_pending", layers_of(config, kSparseRatio), kSparsePendingTokensPerBlock,
                           pending, DType::f32, 2 * kSparseRatio));
    const size_t entries =
        size_t{kEntryTokensPerBlock / kSparseRatio} * (size_t{head_dim} + config.compressed.index_head_dim);
    groups.push_back(
        group("csa_entries", layers_of(config, kSparseRatio), kEntryTokensPerBlock, entries, cache_dtype, 0));
  }
  if (has_ratio(config, kHeavyRatio)) {
    const size_t pending = size_t{kHeavyPendingTokensPerBlock} * pending_layout(config, kHeavyRatio).width;
    groups.push_back(group("hca_pending", layers_of(config, kHeavyRatio), kHeavyPendingTokensPerBlock,
                           pending, DType::f32, kHeavyRatio));
    groups.push_back(group("hca_entries", layers_of(config, kHeavyRatio), kEntryTokensPerBlock,
                           size_t{kEntryTokensPerBlock / kHeavyRatio} * head_dim, cache_dtype, 0));
  }
  return groups;
}

}  // namespace tandem
