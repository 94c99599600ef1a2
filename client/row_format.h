// Rows of floats in the numbers in which they travel (kernels/activation_format.h): what a request does with
// float32 and bf16 rows, and tandem_client_quantize_rows; names and numbers are those of tandem_client.h. Any
// thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "kernels/activation_format.h"

namespace tandem {

// `in`: plain rows, f32 or bf16. Afterwards, without gaps:
//   values [rows, cols] of value_dtype(format, compute)
//   scales [rows, scale_cols(format, cols)]; null in a plain format
// A quantised format rounds as KernelTable::quantize_rows, a plain one to nearest even.
void encode_rows(const ActivationView& in, ActivationFormat format, DType compute, uint32_t rows,
                 uint32_t cols, std::byte* values, std::byte* scales);

// The tandem_client_row_format; 0: one that this release has no name for.
int32_t row_format_of(ActivationFormat format, DType compute);

// tandem_client_dtype: whether rows of it can be encoded, and its name (the number, where it is none).
bool is_plain_dtype(int32_t dtype);
std::string dtype_text(int32_t dtype);

// As tandem_client_quantize_rows.
Status quantize_rows(int32_t format, int32_t input_dtype, const void* input, size_t input_stride,
                     uint32_t rows, uint32_t cols, void* values, void* scales);

}  // namespace tandem
