// The rounding of TrainedRounding. Exact operations and single roundings alone but for the Hadamard sums.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/compressed_args.h"
#include "kernels/isa/elementwise.h"
#include "kernels/isa/isa_namespace.h"
#include "kernels/isa/output.h"
#include "kernels/isa/quantize.h"

namespace tandem::TANDEM_ISA_NAMESPACE {

inline constexpr uint32_t kRoundedFp8Block = 64, kRoundedFp4Block = 32;

TANDEM_INLINE void narrow_row(float* x, uint32_t cols) {
  for (uint32_t i = 0; i < cols; i += 16) {
    const uint32_t lanes = lanes_at(i, cols);
    write_lanes(DType::f32, x, i, rounded_to_bf16(load_lanes(x + i, lanes)), lanes);
  }
}

TANDEM_INLINE void round_fp8(float* x, uint32_t cols) {
  for (uint32_t begin = 0; begin < cols; begin += kRoundedFp8Block) {
    const uint32_t end = begin + kRoundedFp8Block < cols ? begin + kRoundedFp8Block : cols;
    const uint32_t exponent = scale_exponent(largest_magnitude(DType::f32, x, begin, end));
    if (exponent >= 254) continue;
    const Vec scale = set1(float_of(exponent << 23)), inverse = set1(float_of((254 - exponent) << 23));
    for (uint32_t i = begin; i < end; i += 16) {
      const uint32_t lanes = lanes_at(i, end);
      uint8_t codes[16];
      store_e4m3(codes, mul(load_lanes(x + i, lanes), inverse));
      write_lanes(DType::f32, x, i, mul(load_e4m3(codes), scale), lanes);
    }
  }
}

// Ties to even. 1.5 * 2^23: adding and taking it away leaves the nearest integer.
TANDEM_INLINE float nearest_e2m1(float x) {
  const float magnitude = x < 0 ? -x : x;
  const float step = magnitude < 2.0f ? 0.5f : magnitude < 4.0f ? 1.0f : 2.0f;
  const float steps = (magnitude / step + 12582912.0f) - 12582912.0f;
  return x < 0 ? -(steps * step) : steps * step;
}

TANDEM_INLINE void round_fp4(float* x, uint32_t cols) {
  for (uint32_t begin = 0; begin < cols; begin += kRoundedFp4Block) {
    const uint32_t end = begin + kRoundedFp4Block < cols ? begin + kRoundedFp4Block : cols;
    const uint32_t magnitude = largest_magnitude(DType::f32, x, begin, end);
    if (magnitude >= kInfinityBits) continue;
    // 6 = 1.5 * 2^2 is the largest e2m1 value; the smallest scale is 2^-126.
    const uint32_t power = (magnitude >> 23) + ((magnitude & 0x7fffffu) > 0x400000u ? 1 : 0);
    const uint32_t exponent = power < 3 ? 1 : power - 2;
    const float scale = float_of(exponent << 23), inverse = float_of((254 - exponent) << 23);
    for (uint32_t i = begin; i < end; ++i) x[i] = nearest_e2m1(x[i] * inverse) * scale;
  }
}

TANDEM_INLINE void hadamard(float* x, uint32_t size) {
  for (uint32_t half = 1; half < size; half *= 2) {
    for (uint32_t begin = 0; begin < size; begin += 2 * half) {
      for (uint32_t i = begin; i < begin + half; ++i) {
        const float a = x[i], b = x[i + half];
        x[i] = a + b;
        x[i + half] = a - b;
      }
    }
  }
  const float scale = 1.0f / __builtin_sqrtf(static_cast<float>(size));
  for (uint32_t i = 0; i < size; ++i) x[i] *= scale;
}

TANDEM_INLINE void round_as_trained(TrainedRounding kind, bool narrow, float* x, uint32_t cols) {
  if (kind == TrainedRounding::none) return;
  if (narrow) narrow_row(x, cols);
  if (kind == TrainedRounding::fp8) return round_fp8(x, cols);
  hadamard(x, cols);
  if (narrow) narrow_row(x, cols);
  round_fp4(x, cols);
}

inline size_t trained_rounding_tasks(const TrainedRoundingArgs& args) {
  return row_tasks(args.rows, args.heads * args.cols);
}

inline void trained_rounding_run(const TrainedRoundingArgs& args, size_t task, std::byte*) {
  for_task_rows(args.rows, args.heads * args.cols, task, [&](size_t row) {
    for (uint32_t head = 0; head < args.heads; ++head) {
      round_as_trained(args.kind, args.narrow, args.x + row * args.row_stride + head * args.head_stride,
                       args.cols);
    }
  });
}

}  // namespace tandem::TANDEM_ISA_NAMESPACE
