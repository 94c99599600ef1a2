// Which state group holds the keys and values of a layer, where attention reads keys as they are (GQA and
// MLA; DeepSeek-V4's are compressed_state.h). Layers that see all keys share a group that keeps everything.
// Layers with a window (gpt-oss) have one that keeps what a row can still see: beyond it blocks go back to
// their pool. Pure; any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/paged_kv_layout.h"
#include "model/model_config.h"
#include "program/state_group.h"

namespace tandem {

// Group 0 keeps everything, unless every layer has a window.
std::vector<StateGroupSpec> kv_state_groups(const ModelConfig& config, const PagedKvLayout& layout);

// Its number among those.
uint32_t kv_group(const ModelConfig& config, uint32_t layer);

}  // namespace tandem
