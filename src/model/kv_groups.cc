#include "model/kv_groups.h"

#include <algorithm>
#include <utility>

namespace tandem {
namespace {

bool any_layer_sees_all(const ModelConfig& config) {
  for (uint32_t layer = 0; layer < config.total_layers(); ++layer) {
    if (config.attention.window(layer) == 0) return true;
  }
  return false;
}

}  // namespace

uint32_t kv_group(const ModelConfig& config, uint32_t layer) {
  return config.attention.window(layer) != 0 && any_layer_sees_all(config) ? 1 : 0;
}

std::vector<StateGroupSpec> kv_state_groups(const ModelConfig& config, const PagedKvLayout& layout) {
  StateGroupSpec all, windows;
  for (StateGroupSpec* spec : {&all, &windows}) {
    spec->tokens_per_block = layout.tokens_per_block;
    spec->bytes_per_block = layout.block_bytes();
    spec->dtype = layout.dtype;
  }
  windows.name = "kv_window";
  for (uint32_t layer = 0; layer < config.total_layers(); ++layer) {
    const uint32_t window = config.attention.window(layer);
    (window == 0 ? all : windows).layers.push_back(layer);
    windows.retain_tokens = std::max(windows.retain_tokens, window);
  }
  std::vector<StateGroupSpec> groups;
  for (StateGroupSpec* spec : {&all, &windows}) {
    if (!spec->layers.empty()) groups.push_back(std::move(*spec));
  }
  return groups;
}

}  // namespace tandem
