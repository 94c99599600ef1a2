// ActivationFormat: in which numbers the rows of activations travel between attention and the experts, and
// how their scales lie. The only place that knows it: frames, buffers and kernels ask here.
//
//   plain   values of the compute dtype (bf16 or f32), no scale
//   fp8     e4m3, one float32 scale for each 128 values of a row, a power of two
//   mxfp8   e4m3, one e8m0 scale for each 32 values of a row (byte b is 2^(b - 127), 255 is NaN)
//   int8    int8, one float32 scale for the whole row
//
// A value is its stored number times its scale. The last block of a row may be shorter. Values; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "base/dtype.h"
#include "base/result.h"

namespace tandem {

enum class ActivationFormat : uint8_t { plain, fp8, mxfp8, int8 };

// Read-only rows of activations.
struct ActivationView {
  DType dtype = DType::bf16;   // of the values: f32 or bf16; f8_e4m3 or i8 in a quantised format
  const void* data = nullptr;  // [rows, row_stride]
  size_t row_stride = 0;       // elements
  ActivationFormat format = ActivationFormat::plain;
  const void* scales = nullptr;  // [rows, scale_stride] of scale_dtype(format); null when plain
  size_t scale_stride = 0;       // elements
};

std::string_view activation_format_name(ActivationFormat format);  // "fp8"
std::optional<ActivationFormat> activation_format_from_name(std::string_view name);

inline bool is_quantized(ActivationFormat format) {
  return format != ActivationFormat::plain;
}
// Of the values; `compute`: what plain rows have.
DType value_dtype(ActivationFormat format, DType compute);
DType scale_dtype(ActivationFormat format);  // none when plain
// Log2 of the values of a row that share a scale; 0 where a row has one scale or none.
uint8_t log2_scale_block(ActivationFormat format);
uint32_t scale_cols(ActivationFormat format, uint32_t cols);  // scales of a row; 0 when plain
size_t scale_row_bytes(ActivationFormat format, uint32_t cols);

// What any user of rows asks first: the values' dtype, a row at least `cols` wide, and the pair rules: a
// quantised format has its own dtype and scales, a plain one has no scale. invalid_argument, saying what is
// there and what `format` of `compute` rows asks for.
Status check_activation(const ActivationView& view, ActivationFormat format, DType compute, uint32_t cols);

// The rows from `first` on; values and scales move together.
ActivationView rows_from(ActivationView view, size_t first);

// Copies rows row_index[0], row_index[1], ... (empty: 0, 1, ...) of `from` without gaps: `cols` values each
// to `values`, their scales to `scales`. One permutation for both. `from` passed check_activation.
void gather_rows(const ActivationView& from, std::span<const uint32_t> row_index, uint32_t rows,
                 uint32_t cols, std::byte* values, std::byte* scales);

}  // namespace tandem
