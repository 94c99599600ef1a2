// PackedWeight: a weight matrix in the layout that its kernel streams; the same bytes serve prefill and
// decode. Weights are [rows, cols] = [out features, in features], as in a checkpoint: y[o] = sum_i W[o, i]
// x[i]. The bytes are owned elsewhere (a WeightStore) and do not move.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tandem {

enum class PackFormat : uint8_t {
  f32,   // float32 weights, float32 activations: the reference mode
  bf16,  // bfloat16 weights, bfloat16 activations, float32 accumulation
};

// How rows are arranged: `plain` for a projection, `gate_up` for two matrices of rows/2 rows each (gate
// first, then up) whose panels alternate, so that one pass over memory yields both factors of a SwiGLU.
enum class PackArrangement : uint8_t { plain, gate_up };

struct PackedWeight {
  PackFormat format = PackFormat::bf16;
  PackArrangement arrangement = PackArrangement::plain;
  uint32_t rows = 0;  // out features; for gate_up: 2 * intermediate size
  uint32_t cols = 0;  // in features
  const std::byte* data = nullptr;
  size_t bytes = 0;

  bool empty() const { return data == nullptr; }
};

}  // namespace tandem
