// PackedWeight: a weight matrix in the layout that its kernel streams; the same bytes serve prefill and
// decode. Weights are [rows, cols] = [out features, in features], as in a checkpoint: y[o] = sum_i W[o, i]
// x[i]. The bytes are owned elsewhere (a WeightStore) and do not move.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tandem {

enum class PackFormat : uint8_t {
  f32,   // float32 weights, float32 activations: the reference mode
  bf16,  // bfloat16 weights, bfloat16 activations, float32 accumulation
  // Weights as released files have them; bfloat16 activations, float32 accumulation, no bf16 copy in memory.
  // A weight is its code times the scale of its block. The scale multiplies the running sum, not the code:
  // see isa/coded_product.h for the numerics.
  fp8_block,  // e4m3, one float32 scale for each 128 columns of a row (128 x 128 blocks, spread over rows)
  mxfp4,      // e2m1, one e8m0 scale for each 32 columns of a row
  mxfp8,      // e4m3, one e8m0 scale for each 32 columns of a row
  // Made at load: int8 weights with one float32 scale a row, int8 activations with scales of their own, exact
  // int32 sums (isa/int8_product.h).
  int8,
};

inline constexpr size_t kPackFormats = 6;

constexpr std::string_view pack_format_name(PackFormat format) {
  constexpr std::string_view kNames[] = {"f32", "bf16", "fp8_block", "mxfp4", "mxfp8", "int8"};
  return kNames[static_cast<size_t>(format)];
}
// Codes with scales of blocks of columns, multiplied with bf16 activations.
[[gnu::always_inline]] constexpr bool is_coded(PackFormat format) {
  return format == PackFormat::fp8_block || format == PackFormat::mxfp4 || format == PackFormat::mxfp8;
}
// Columns of a row that share a scale, counted from the first column of the stored matrix; 1 without such
// blocks.
[[gnu::always_inline]] constexpr uint32_t scale_block_cols(PackFormat format) {
  return format == PackFormat::fp8_block ? 128 : is_coded(format) ? 32 : 1;
}

// Columns of an int8 weight at most: 2^16 products of 255 and 127 stay below 2^31.
inline constexpr uint32_t kInt8MostCols = uint32_t{1} << 16;

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
  // Coded: columns of the first scale block that come before the first column here, where a stored matrix was
  // cut inside a block; even. They are packed as zeros and never multiplied: `bytes` is that of
  // cols + col_phase columns.
  uint32_t col_phase = 0;

  bool empty() const { return data == nullptr; }
};

}  // namespace tandem
