#include "row_format.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "base/bf16.h"
#include "kernels/row_quantizer.h"
#include "tandem_client.h"

namespace tandem {
namespace {

// The formats of rows that have a name here.
struct NamedFormat {
  tandem_client_row_format name;
  ActivationFormat format;
  DType compute;  // of the values of a plain one
};
constexpr std::array<NamedFormat, 5> kRowFormats = {{
    {TANDEM_CLIENT_ROWS_BF16, ActivationFormat::plain, DType::bf16},
    {TANDEM_CLIENT_ROWS_F32, ActivationFormat::plain, DType::f32},
    {TANDEM_CLIENT_ROWS_FP8, ActivationFormat::fp8, DType::none},
    {TANDEM_CLIENT_ROWS_MXFP8, ActivationFormat::mxfp8, DType::none},
    {TANDEM_CLIENT_ROWS_INT8, ActivationFormat::int8, DType::none},
}};

std::unexpected<Error> invalid(std::string message) {
  return make_error(ErrorCode::invalid_argument, std::move(message));
}

void convert_row(DType from, const std::byte* in, DType to, uint32_t cols, std::byte* out) {
  if (from == to) {
    std::memcpy(out, in, dtype_bytes(to, cols));
    return;
  }
  for (uint32_t i = 0; i < cols; ++i) {
    float value;
    bf16 narrow;
    if (from == DType::f32) {
      std::memcpy(&value, in + i * sizeof value, sizeof value);
      narrow = to_bf16(value);
      std::memcpy(out + i * sizeof narrow, &narrow, sizeof narrow);
    } else {
      std::memcpy(&narrow, in + i * sizeof narrow, sizeof narrow);
      value = to_float(narrow);
      std::memcpy(out + i * sizeof value, &value, sizeof value);
    }
  }
}

}  // namespace

void encode_rows(const ActivationView& in, ActivationFormat format, DType compute, uint32_t rows,
                 uint32_t cols, std::byte* values, std::byte* scales) {
  if (is_quantized(format)) {
    quantize_all_rows(
        {.in = in, .format = format, .values = values, .scales = scales, .rows = rows, .cols = cols});
    return;
  }
  const auto* from = static_cast<const std::byte*>(in.data);
  for (size_t row = 0; row < rows; ++row) {
    convert_row(in.dtype, from + dtype_bytes(in.dtype, row * in.row_stride), compute, cols,
                values + dtype_bytes(compute, row * cols));
  }
}

int32_t row_format_of(ActivationFormat format, DType compute) {
  for (const NamedFormat& known : kRowFormats) {
    if (known.format == format && (is_quantized(format) || known.compute == compute)) return known.name;
  }
  return 0;
}

bool is_plain_dtype(int32_t dtype) {
  return dtype == TANDEM_CLIENT_F32 || dtype == TANDEM_CLIENT_BF16;
}

std::string dtype_text(int32_t dtype) {
  const std::string_view name = dtype > 0 && dtype <= 17 ? dtype_name(static_cast<DType>(dtype)) : "";
  return name.empty() ? fmt::format("{}", dtype) : std::string(name);
}

Status quantize_rows(int32_t format, int32_t input_dtype, const void* input, size_t input_stride,
                     uint32_t rows, uint32_t cols, void* values, void* scales) {
  const auto known =
      std::ranges::find_if(kRowFormats, [&](const NamedFormat& one) { return one.name == format; });
  if (known == kRowFormats.end()) {
    return make_error(
        ErrorCode::unsupported,
        fmt::format("format {}: the names of tandem_client_row_format, from 1 to 5, would do", format));
  }
  if (!is_plain_dtype(input_dtype)) {
    return make_error(ErrorCode::unsupported,
                      fmt::format("input_dtype {}: f32 and bf16 would do", dtype_text(input_dtype)));
  }
  const size_t stride = input_stride != 0 ? input_stride : cols;
  if (stride < cols) return invalid(fmt::format("input_stride {}: rows have {} values", stride, cols));
  if (rows == 0 || cols == 0) return {};
  if (input == nullptr || values == nullptr) return invalid("input and values are both needed, [rows, cols]");
  if (is_quantized(known->format) != (scales != nullptr)) {
    return invalid(scales == nullptr
                       ? fmt::format("scales is NULL: rows of {} have scales, [rows, {}]",
                                     activation_format_name(known->format), scale_cols(known->format, cols))
                       : "scales: rows of bf16 and f32 have none, give NULL");
  }
  encode_rows({.dtype = static_cast<DType>(input_dtype), .data = input, .row_stride = stride}, known->format,
              known->compute, rows, cols, static_cast<std::byte*>(values), static_cast<std::byte*>(scales));
  return {};
}

}  // namespace tandem
