// Operations of attention: rotary tables and rotation, cache writes, and attention over the paged cache.
// Causality needs no mask: a row attends to the positions 0..its own, and the keys of all rows are written
// before any row attends.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/kernel_args.h"
#include "program/operation.h"
#include "program/step.h"

namespace tandem {

// cos and sin of position * inverse_frequencies[i], times `factor`, computed in float64 and rounded to
// float32; once a step, shared by all layers. out: float32 [rows, rope_dim], rope_dim / 2 cosines, then as
// many sines. Positions are rounded down to a multiple of `granule`.
OperationPtr rope_table(std::string name, std::vector<double> inverse_frequencies, double factor,
                        const Tensor& out, uint32_t granule = 1);

struct RopeSpec {
  Tensor x;             // float32, rotated in place
  uint32_t column = 0;  // of the first head's first rotated value
  uint32_t heads = 1;
  uint32_t head_stride = 0;  // elements
  Tensor table;              // of rope_table; its columns are the rotated values of a head
  RopeLayout layout = RopeLayout::half_split;
  bool inverse = false;  // back by the same angles
};
OperationPtr rope(std::string name, const RopeSpec& spec);

struct KvWriteSpec {
  KvCacheView cache;
  uint32_t group = 0;  // the state group whose blocks `cache` has
  Tensor first;        // float32: keys, or the latent
  uint32_t first_column = 0, first_width = 0;
  Tensor second;  // float32: values, or the rotated key part
  uint32_t second_column = 0, second_width = 0;
  uint32_t num_kv_heads = 0;  // 0: MLA
};
OperationPtr kv_write(std::string name, const KvWriteSpec& spec);

struct GqaSpec {
  KvCacheView cache;
  uint32_t group = 0;
  Tensor query;  // float32; heads head_dim apart
  uint32_t query_column = 0;
  Tensor out;  // compute dtype [rows, num_heads * head_dim]
  uint32_t num_heads = 0, num_kv_heads = 0, head_dim = 0;
  float scale = 1.0f;
  uint32_t window = 0;           // keys that a row sees, itself included; 0: all
  std::span<const float> sinks;  // [num_heads] or empty
};
OperationPtr gqa(std::string name, const GqaSpec& spec);

}  // namespace tandem
