#include "program/state_caches.h"

#include <string>

namespace tandem {

void StateCaches::set(uint32_t group, uint32_t layer, const KvCacheView& view) {
  if (group >= views_.size()) views_.resize(group + 1);
  if (layer >= views_[group].size()) views_[group].resize(layer + 1);
  views_[group][layer] = view;
}

KvCacheView StateCaches::view(uint32_t group, uint32_t layer) const {
  if (group >= views_.size() || layer >= views_[group].size()) return {};
  return views_[group][layer];
}

Status StateCaches::check(std::span<const StateGroupSpec> groups) const {
  for (uint32_t group = 0; group < groups.size(); ++group) {
    const StateGroupSpec& spec = groups[group];
    for (const uint32_t layer : spec.layers) {
      const KvCacheView cache = view(group, layer);
      const std::string of = "the cache of layer " + std::to_string(layer) + " (" + spec.name + ")";
      if (cache.base == nullptr) return make_error(ErrorCode::invalid_argument, of + " is absent");
      if (cache.dtype == spec.dtype && cache.tokens_per_block == spec.tokens_per_block &&
          cache.block_bytes >= spec.bytes_per_block) {
        continue;
      }
      return make_error(
          ErrorCode::invalid_argument,
          of + " has blocks of " + std::to_string(cache.tokens_per_block) + " tokens and " +
              std::to_string(cache.block_bytes) + " bytes of " + std::string(dtype_name(cache.dtype)) +
              ": the model needs " + std::to_string(spec.tokens_per_block) + " tokens, " +
              std::to_string(spec.bytes_per_block) + " bytes, " + std::string(dtype_name(spec.dtype)));
    }
  }
  return {};
}

Result<OwnedBuffer> allocate_state_group(const StateGroupSpec& spec, uint32_t group, uint32_t num_blocks,
                                         StateCaches& caches) {
  const size_t block_bytes = spec.bytes_of_all_layers();
  TANDEM_ASSIGN(OwnedBuffer memory, OwnedBuffer::allocate(block_bytes * num_blocks));
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    caches.set(group, spec.layers[i],
               {memory.data() + i * spec.bytes_per_block, block_bytes, spec.tokens_per_block, spec.dtype});
  }
  return memory;
}

}  // namespace tandem
