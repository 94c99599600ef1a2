// The loops of roofs.h over the vectors of one instruction set (kernels/isa/simd_*.h, which comes first).
#pragma once

#include <cstddef>

#include "bench/roofs.h"
#include "kernels/isa/isa_namespace.h"

namespace tandem::TANDEM_ISA_NAMESPACE {

inline float roof_read(const std::byte* data, size_t bytes) {
  Vec sums[4] = {zero(), zero(), zero(), zero()};
  const float* p = reinterpret_cast<const float*>(data);
  for (size_t i = 0; i < bytes / 4; i += 64) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) sums[j] = add(sums[j], load(p + i + j * 16));
  }
  return reduce_add(add(add(sums[0], sums[1]), add(sums[2], sums[3])));
}

// The factors come from memory that the compiler cannot see through, else it would fold the loop.
inline float roof_fma_f32(size_t count, double& flops) {
  volatile float seed = 0.5f;
  const Vec x = set1(seed), y = set1(seed);
  Vec sums[kF32Accumulators];
  for (Vec& sum : sums) sum = set1(seed);
  for (size_t i = 0; i < count; ++i) {
#pragma GCC unroll 32
    for (Vec& sum : sums) sum = fma(x, y, sum);
  }
  Vec total = zero();
  for (const Vec& sum : sums) total = add(total, sum);
  flops += static_cast<double>(count) * kF32Accumulators * 16 * 2;
  return reduce_add(total);
}

inline float roof_dot_bf16(size_t count, double& flops) {
  volatile uint32_t seed = 0x3f003f00u;
  const auto x = broadcast_pair(seed), y = broadcast_pair(seed);
  Vec sums[kBf16Accumulators];
  for (Vec& sum : sums) sum = zero();
  for (size_t i = 0; i < count; ++i) {
#pragma GCC unroll 32
    for (Vec& sum : sums) sum = dot_pairs(sum, x, y);
  }
  Vec total = zero();
  for (const Vec& sum : sums) total = add(total, sum);
  flops += static_cast<double>(count) * kBf16Accumulators * 16 * 4;
  return reduce_add(total);
}

constexpr bench::RoofLoops make_roof_loops(std::string_view table) noexcept {
  return {table, roof_read, roof_dot_bf16, roof_fma_f32};
}

}  // namespace tandem::TANDEM_ISA_NAMESPACE
