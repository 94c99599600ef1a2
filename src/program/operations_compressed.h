// Operations of attention over a window of keys and over entries that pool several tokens each
// (kernels/compressed_args.h). All of them read what earlier rows have cached.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "program/operation.h"
#include "program/step.h"

namespace tandem {

// Makes the entries that rows of the step complete, from what is pending.
struct CompressSpec {
  KvCacheView pending;
  uint32_t pending_group = 0;
  uint32_t pending_width = 0, keys_offset = 0, scores_offset = 0;  // values of a token
  std::span<const float> position_bias, norm;
  float epsilon = 1e-6f;
  Tensor rope;  // of rope_table with granule `ratio`
  KvCacheView entries;
  uint32_t entries_group = 0, entry_offset = 0;
  uint32_t ratio = 0, dim = 0;
  bool overlap = false;
  TrainedRounding rounding = TrainedRounding::none;
};
OperationPtr compress(std::string name, const CompressSpec& spec);

// Rounds the first `cols` values of each head in place.
struct TrainedRoundingSpec {
  Tensor x;  // float32
  uint32_t heads = 1, head_stride = 0, cols = 0;
  TrainedRounding kind = TrainedRounding::none;
  bool narrow = false;  // the compute dtype is bf16
};
OperationPtr trained_rounding(std::string name, const TrainedRoundingSpec& spec);

struct IndexSelectSpec {
  KvCacheView entries;
  uint32_t group = 0, key_offset = 0;
  uint32_t ratio = 0, heads = 0, dim = 0;
  Tensor query;     // float32 [rows, heads * dim]
  Tensor weights;   // float32 [rows, heads]
  Tensor selected;  // int32 [rows, top_k]
};
OperationPtr index_select(std::string name, const IndexSelectSpec& spec);

struct CompressedAttentionSpec {
  KvCacheView window_cache;
  uint32_t window_group = 0, window = 0;
  bool ranged = false;  // StepBatch::key_ranges instead of `window`
  KvCacheView entries;  // ratio 0: none
  uint32_t entries_group = 0, ratio = 0;
  Tensor selected;  // of index_select; empty: all entries
  Tensor query;     // float32 [rows, num_heads * head_dim]
  std::span<const float> sinks;
  Tensor out;  // float32 or bf16 [rows, num_heads * head_dim]
  uint32_t num_heads = 0, head_dim = 0;
  float scale = 1.0f;
};
OperationPtr compressed_attention(std::string name, const CompressedAttentionSpec& spec);

}  // namespace tandem
