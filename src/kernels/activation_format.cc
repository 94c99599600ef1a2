#include "kernels/activation_format.h"

#include <array>
#include <cstring>
#include <string>

namespace tandem {
namespace {

struct Entry {
  std::string_view name;
  DType values, scales;
  uint8_t log2_block;
};
// In the order of the enumeration.
constexpr std::array<Entry, 4> kEntries = {{
    {"plain", DType::none, DType::none, 0},
    {"fp8", DType::f8_e4m3, DType::f32, 7},
    {"mxfp8", DType::f8_e4m3, DType::f8_e8m0, 5},
    {"int8", DType::i8, DType::f32, 0},
}};

const Entry& entry(ActivationFormat format) {
  return kEntries[static_cast<size_t>(format)];
}

std::string describe(ActivationFormat format, DType values) {
  std::string text(dtype_name(values));
  if (is_quantized(format)) text += " (" + std::string(activation_format_name(format)) + ")";
  return text;
}

}  // namespace

std::string_view activation_format_name(ActivationFormat format) {
  return entry(format).name;
}

std::optional<ActivationFormat> activation_format_from_name(std::string_view name) {
  for (size_t i = 0; i < kEntries.size(); ++i) {
    if (kEntries[i].name == name) return static_cast<ActivationFormat>(i);
  }
  return std::nullopt;
}

DType value_dtype(ActivationFormat format, DType compute) {
  return is_quantized(format) ? entry(format).values : compute;
}

DType scale_dtype(ActivationFormat format) {
  return entry(format).scales;
}

uint8_t log2_scale_block(ActivationFormat format) {
  return entry(format).log2_block;
}

uint32_t scale_cols(ActivationFormat format, uint32_t cols) {
  if (!is_quantized(format)) return 0;
  const uint8_t log2_block = entry(format).log2_block;
  if (log2_block == 0) return 1;
  return (cols >> log2_block) + ((cols & ((uint32_t{1} << log2_block) - 1)) != 0 ? 1 : 0);
}

size_t scale_row_bytes(ActivationFormat format, uint32_t cols) {
  return dtype_bytes(scale_dtype(format), scale_cols(format, cols));
}

Status check_activation(const ActivationView& view, ActivationFormat format, DType compute, uint32_t cols) {
  const auto refuse = [&](const std::string& what) { return make_error(ErrorCode::invalid_argument, what); };
  const DType wanted = value_dtype(format, compute);
  if (view.dtype != wanted || view.format != format || view.row_stride < cols) {
    return refuse("an activation of " + describe(view.format, view.dtype) + " rows of " +
                  std::to_string(view.row_stride) + " where " + describe(format, wanted) + " rows of " +
                  std::to_string(cols) + " are expected");
  }
  if (!is_quantized(format)) {
    return view.scales == nullptr
               ? Status{}
               : refuse("a scale beside " + describe(format, wanted) + " rows, which have none");
  }
  if (view.scales == nullptr) return refuse(describe(format, wanted) + " rows without their scales");
  if (view.scale_stride < scale_cols(format, cols)) {
    return refuse(describe(format, wanted) + " rows of " + std::to_string(cols) + " values with " +
                  std::to_string(view.scale_stride) + " scales each where " +
                  std::to_string(scale_cols(format, cols)) + " are expected");
  }
  return {};
}

ActivationView rows_from(ActivationView view, size_t first) {
  view.data = static_cast<const std::byte*>(view.data) + dtype_bytes(view.dtype, first * view.row_stride);
  if (is_quantized(view.format)) {
    view.scales = static_cast<const std::byte*>(view.scales) +
                  dtype_bytes(scale_dtype(view.format), first * view.scale_stride);
  }
  return view;
}

void gather_rows(const ActivationView& from, std::span<const uint32_t> row_index, uint32_t rows,
                 uint32_t cols, std::byte* values, std::byte* scales) {
  const auto gather = [&](const void* source, size_t stride, size_t bytes, std::byte* to) {
    for (size_t row = 0; row < rows; ++row, to += bytes) {
      const size_t at = row_index.empty() ? row : row_index[row];
      std::memcpy(to, static_cast<const std::byte*>(source) + at * stride, bytes);
    }
  };
  gather(from.data, dtype_bytes(from.dtype, from.row_stride), dtype_bytes(from.dtype, cols), values);
  if (!is_quantized(from.format)) return;
  gather(from.scales, dtype_bytes(scale_dtype(from.format), from.scale_stride),
         scale_row_bytes(from.format, cols), scales);
}

}  // namespace tandem
