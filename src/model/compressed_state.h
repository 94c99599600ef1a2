// The state of a sequence under DeepSeek-V4's attention: which groups there are, and where values lie inside
// their blocks. Pure; any thread.
//
//   window         every layer: the last keys, one vector a token (key and value in one)
//   csa_pending    layers of ratio 4: raw keys and scores of the compressor, then of the indexer's, float32
//   hca_pending    layers of ratio 128: raw keys and scores, float32
//   csa_entries    layers of ratio 4: entries, then the indexer's keys of the same entries
//   hca_entries    layers of ratio 128: entries
//
// Pending values stay until no entry can be made of them any more, so going back some tokens is a change of
// length: entries are made again when their last token is written again.
#pragma once

#include <cstdint>
#include <vector>

#include "base/dtype.h"
#include "model/compressed_shape.h"
#include "model/model_config.h"
#include "program/state_group.h"

namespace tandem {

// Offsets in a token of a pending group, in values.
struct PendingLayout {
  uint32_t keys = 0, scores = 0, index_keys = 0, index_scores = 0;
  uint32_t width = 0;  // of a token
};
PendingLayout pending_layout(const ModelConfig& config, uint32_t ratio);

// Offset in a block of entries, in elements: of the indexer's first key. Entries begin at 0.
uint32_t index_key_offset(const ModelConfig& config);

// Numbers of the groups among the model's; those of a ratio that no layer has do not exist.
struct CompressedGroups {
  uint32_t window = 0;
  uint32_t csa_pending = 0, csa_entries = 0, hca_pending = 0, hca_entries = 0;
  uint32_t pending(uint32_t ratio) const { return ratio == kSparseRatio ? csa_pending : hca_pending; }
  uint32_t entries(uint32_t ratio) const { return ratio == kSparseRatio ? csa_entries : hca_entries; }
};
CompressedGroups compressed_groups(const ModelConfig& config);

// `cache_dtype`: of keys and entries.
std::vector<StateGroupSpec> compressed_state_groups(const ModelConfig& config, DType cache_dtype);

}  // namespace tandem
