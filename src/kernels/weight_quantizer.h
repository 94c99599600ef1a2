// Quantises rows of float32 weights into the codes and scales that KernelTable::pack_coded takes, and
// measures what that loses. Codes are rounded to nearest even. A row's codes depend on the row alone, whole
// blocks of it: whoever holds a slice of a matrix gets the codes that the whole has.
//
//   int8       one scale a row, its largest magnitude / 127
//   fp8_block  e4m3, for each 128 columns of a row the smallest power of two that keeps them within 448
//   (finer
//              than the 128 x 128 blocks of released files, in the same bytes)
//   mxfp8      the same for each 32 columns, as e8m0
//   mxfp4      e2m1, for each 32 columns of a row that power of two which keeps them within 6, or half of it,
//              which clips the largest to 6: whichever has the smaller squared error
//
// Powers of two end at 2^-22 (mxfp4: 2^-40): smaller blocks become zero. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kernel_table.h"

namespace tandem {

// What quantising lost, over some elements.
struct QuantizationError {
  uint64_t elements = 0;
  double squared_error = 0, squared = 0;  // sums over the elements
  double largest = 0;                     // difference

  void add(const QuantizationError& other);
  // sqrt(sum of squared differences / sum of squares); 0 where all are zero.
  double relative_rms() const;
};

// Whether quantize_weight_row makes this format.
constexpr bool is_quantized_at_load(PackFormat format) {
  return is_coded(format) || format == PackFormat::int8;
}
// Bytes of the codes and of the scales of a row.
size_t quantized_code_bytes(PackFormat format, uint32_t cols);
size_t quantized_scale_bytes(PackFormat format, uint32_t cols);

// One row [cols] to `codes` and `scales`. `back` [cols]: gets what codes and scales stand for. false: a value
// is NaN or infinite.
[[nodiscard]] bool quantize_weight_row(const KernelTable& table, PackFormat format, const float* row,
                                       uint32_t cols, std::byte* codes, std::byte* scales, float* back);

// Of `cols` elements and what became of them.
QuantizationError quantization_error(const float* row, const float* back, uint32_t cols);

}  // namespace tandem
