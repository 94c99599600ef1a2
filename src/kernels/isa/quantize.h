// Quantised rows of activations: values and scales from float32 or bfloat16 rows, and back. Scales and values
// come from exact operations and single roundings alone (magnitudes are compared as integers, powers of two
// are made of exponents), so every table gives the same bits; the test holds them together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/isa/elementwise.h"
#include "kernels/isa/isa_namespace.h"
#include "kernels/isa/output.h"
#include "kernels/kernel_args.h"

namespace tandem::TANDEM_ISA_NAMESPACE {

inline constexpr uint32_t kInfinityBits = 0x7f800000u, kNanBits = 0x7fc00000u;

// 2^-22: what the largest magnitude 1e-4 asks for. Rows of the released fp8 models were quantised with it.
inline constexpr uint32_t kSmallestScaleExponent = 127 - 22;
inline constexpr float kSmallestInt8Range = 1e-4f;

// Of activation_format.h, whose functions other tables must not get from this one.
TANDEM_INLINE uint32_t log2_block_of(ActivationFormat format) {
  return format == ActivationFormat::fp8 ? 7 : 5;
}

TANDEM_INLINE float float_of(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// The exponent field of the smallest power of two s, at least that of `least`, for which `magnitude` (the
// bits of a float32 without its sign) is at most 448 s; 255 for infinity and NaN. 448 = 1.75 * 2^8 is the
// largest e4m3 value.
TANDEM_INLINE uint32_t scale_exponent(uint32_t magnitude, uint32_t least = kSmallestScaleExponent) {
  if (magnitude >= kInfinityBits) return 255;
  const uint32_t power = (magnitude >> 23) + ((magnitude & 0x7fffffu) > 0x600000u ? 1 : 0);
  return power < least + 8 ? least : power - 8;
}

// Calls body(first element, lanes, vector) for [begin, end) of a row.
template <class Body>
TANDEM_INLINE void for_lanes(DType dtype, const void* row, uint32_t begin, uint32_t end, const Body& body) {
  if (dtype == DType::f32) {
    const float* p = static_cast<const float*>(row);
    for (uint32_t i = begin; i < end; i += 16) {
      const uint32_t lanes = lanes_at(i, end);
      body(i, lanes, load_lanes(p + i, lanes));
    }
  } else {
    const uint16_t* p = static_cast<const uint16_t*>(row);
    for (uint32_t i = begin; i < end; i += 16) {
      const uint32_t lanes = lanes_at(i, end);
      body(i, lanes, lanes == 16 ? load_bf16(p + i) : load_bf16_partial(p + i, lanes));
    }
  }
}

TANDEM_INLINE uint32_t largest_magnitude(DType dtype, const void* row, uint32_t begin, uint32_t end) {
  Vec most = zero();
  for_lanes(dtype, row, begin, end, [&](uint32_t, uint32_t, Vec x) { most = max_magnitude(most, x); });
  return reduce_magnitude(most);
}

// Stores 16 bytes through `store_16`, or the first `lanes` of them.
template <class Store>
TANDEM_INLINE void write_bytes(uint8_t* p, Vec v, uint32_t lanes, const Store& store_16) {
  if (lanes == 16) return store_16(p, v);
  uint8_t all[16];
  store_16(all, v);
  for (uint32_t i = 0; i < lanes; ++i) p[i] = all[i];
}
template <class Load>
TANDEM_INLINE Vec read_bytes(const uint8_t* p, uint32_t lanes, const Load& load_16) {
  if (lanes == 16) return load_16(p);
  uint8_t all[16] = {};
  for (uint32_t i = 0; i < lanes; ++i) all[i] = p[i];
  return load_16(all);
}

// The block's scale, and the inverse to multiply with; false when it is not finite.
TANDEM_INLINE bool write_scale(ActivationFormat format, void* scales, size_t at, uint32_t magnitude,
                               Vec& inverse) {
  const uint32_t exponent = scale_exponent(magnitude);
  if (format == ActivationFormat::fp8) {
    static_cast<float*>(scales)[at] = float_of(exponent == 255 ? kNanBits : exponent << 23);
  } else {
    static_cast<uint8_t*>(scales)[at] = static_cast<uint8_t>(exponent);
  }
  if (exponent == 255) return false;
  inverse = set1(float_of((254 - exponent) << 23));
  return true;
}

// A whole block of kVectors x 16 values, read once.
template <int kVectors, class Element>
TANDEM_INLINE void quantize_block(ActivationFormat format, const Element* in, uint8_t* values, void* scales,
                                  size_t at) {
  Vec x[kVectors], most = zero(), inverse;
#pragma GCC unroll 8
  for (int i = 0; i < kVectors; ++i) {
    if constexpr (sizeof(Element) == sizeof(float)) {
      x[i] = load(in + i * 16);
    } else {
      x[i] = load_bf16(in + i * 16);
    }
    most = max_magnitude(most, x[i]);
  }
  if (!write_scale(format, scales, at, reduce_magnitude(most), inverse)) {
    std::memset(values, 0x7f, kVectors * 16);  // NaN in e4m3 too
    return;
  }
#pragma GCC unroll 8
  for (int i = 0; i < kVectors; ++i) store_e4m3(values + i * 16, mul(x[i], inverse));
}

template <int kVectors, class Element>
TANDEM_INLINE void quantize_e4m3_row(ActivationFormat format, DType dtype, const Element* in, uint32_t cols,
                                     uint8_t* values, void* scales, size_t at) {
  constexpr uint32_t kBlock = kVectors * 16;
  uint32_t begin = 0;
  for (; begin + kBlock <= cols; begin += kBlock, ++at)
    quantize_block<kVectors>(format, in + begin, values + begin, scales, at);
  if (begin == cols) return;
  Vec inverse;  // of the last, shorter block
  if (!write_scale(format, scales, at, largest_magnitude(dtype, in, begin, cols), inverse)) {
    std::memset(values + begin, 0x7f, cols - begin);
    return;
  }
  for_lanes(dtype, in, begin, cols, [&](uint32_t i, uint32_t lanes, Vec x) {
    write_bytes(values + i, mul(x, inverse), lanes, [](uint8_t* p, Vec v) { store_e4m3(p, v); });
  });
}

template <class Element>
TANDEM_INLINE void quantize_e4m3_row(const QuantizeArgs& args, const Element* in, size_t row) {
  uint8_t* values = static_cast<uint8_t*>(args.values) + row * args.cols;
  if (args.format == ActivationFormat::fp8) {
    quantize_e4m3_row<8>(args.format, args.in.dtype, in, args.cols, values, args.scales,
                         row * ((args.cols + 127) / 128));
  } else {
    quantize_e4m3_row<2>(args.format, args.in.dtype, in, args.cols, values, args.scales,
                         row * ((args.cols + 31) / 32));
  }
}

TANDEM_INLINE void quantize_int8_block(const QuantizeArgs& args, const void* in, uint32_t begin, uint32_t end,
                                       uint8_t* values, float* scale) {
  const uint32_t magnitude = largest_magnitude(args.in.dtype, in, begin, end);
  if (magnitude >= kInfinityBits) {
    *scale = float_of(kNanBits);
    std::memset(values + begin, 0, end - begin);
    return;
  }
  const float largest = float_of(magnitude) < kSmallestInt8Range ? kSmallestInt8Range : float_of(magnitude);
  *scale = largest / 127.0f;
  const Vec inverse = set1(127.0f / largest);
  for_lanes(args.in.dtype, in, begin, end, [&](uint32_t i, uint32_t lanes, Vec x) {
    write_bytes(values + i, mul(x, inverse), lanes, [](uint8_t* p, Vec v) { store_i8(p, v); });
  });
}

inline void quantize_int8_row(const QuantizeArgs& args, const void* in, size_t row) {
  uint8_t* values = static_cast<uint8_t*>(args.values) + row * args.cols;
  const uint32_t block = args.block_cols == 0 ? args.cols : args.block_cols;
  const uint32_t blocks = block == 0 ? 1 : (args.cols + block - 1) / block;
  float* scales = static_cast<float*>(args.scales) + row * blocks;
  for (uint32_t b = 0; b < blocks; ++b) {
    const uint32_t begin = b * block, end = args.cols - begin < block ? args.cols : begin + block;
    quantize_int8_block(args, in, begin, end, values, scales + b);
  }
}

inline size_t quantize_tasks(const QuantizeArgs& args) {
  return row_tasks(args.rows, args.cols);
}
inline void quantize_run(const QuantizeArgs& args, size_t task, std::byte*) {
  const size_t element = args.in.dtype == DType::f32 ? 4 : 2;
  for_task_rows(args.rows, args.cols, task, [&](size_t i) {
    const size_t row = args.row_index == nullptr ? i : args.row_index[i];
    const void* in = static_cast<const std::byte*>(args.in.data) + row * args.in.row_stride * element;
    if (args.format == ActivationFormat::int8) {
      quantize_int8_row(args, in, row);
    } else if (args.in.dtype == DType::f32) {
      quantize_e4m3_row(args, static_cast<const float*>(in), row);
    } else {
      quantize_e4m3_row(args, static_cast<const uint16_t*>(in), row);
    }
  });
}

TANDEM_INLINE float block_scale(const DequantizeArgs& args, size_t at) {
  if (args.in.format != ActivationFormat::mxfp8) return static_cast<const float*>(args.in.scales)[at];
  const uint32_t exponent = static_cast<const uint8_t*>(args.in.scales)[at];
  // 2^-127 is below the normal numbers of float32.
  return float_of(exponent == 255 ? kNanBits : exponent == 0 ? 0x00400000u : exponent << 23);
}

inline size_t dequantize_tasks(const DequantizeArgs& args) {
  return row_tasks(args.rows, args.cols);
}
template <class Load>
TANDEM_INLINE void dequantize_row(const DequantizeArgs& args, size_t row, uint32_t block,
                                  const Load& load_16) {
  const uint8_t* values = static_cast<const uint8_t*>(args.in.data) + row * args.in.row_stride;
  const size_t out = row * args.out.row_stride, scales = row * args.in.scale_stride;
  const DType dtype = args.out.dtype;
  void* const data = args.out.data;
  const uint32_t cols = args.cols;
  for (uint32_t begin = 0, b = 0; begin < cols; begin += block, ++b) {
    const uint32_t end = cols - begin < block ? cols : begin + block;
    const Vec scale = set1(block_scale(args, scales + b));
    for (uint32_t i = begin; i < end; i += 16) {
      const uint32_t lanes = lanes_at(i, end);
      write_lanes(dtype, data, out + i, mul(read_bytes(values + i, lanes, load_16), scale), lanes);
    }
  }
}

inline void dequantize_run(const DequantizeArgs& args, size_t task, std::byte*) {
  for_task_rows(args.rows, args.cols, task, [&](size_t row) {
    if (args.in.format == ActivationFormat::int8) {
      dequantize_row(args, row, args.cols, [](const uint8_t* p) { return load_i8(p); });
    } else {
      dequantize_row(args, row, 1u << log2_block_of(args.in.format),
                     [](const uint8_t* p) { return load_e4m3(p); });
    }
  });
}

}  // namespace tandem::TANDEM_ISA_NAMESPACE
