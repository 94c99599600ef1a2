// The loops of roofs.h over the vectors of one instruction set (kernels/isa/simd_*.h, which comes first).
#pragma once

#include <cstddef>
#include <cstdint>

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

// Products of unsigned by signed bytes, summed by fours (by twos first, where there is no such dot product)
// into int32 lanes. Without it the factors must look new to the compiler each time, or it would multiply
// once.
#if defined(__AVX512BW__)
#if defined(__AVX512BF16__)
// Every CPU with the bf16 dot has this one; which is looked up all the same (roofs.cc).
#define TANDEM_ROOF_I8 [[gnu::target("avx512vnni")]]
#define TANDEM_ROOF_I8_DOT(sum) sum = _mm512_dpbusd_epi32(sum, x, y)
#else
#define TANDEM_ROOF_I8
#define TANDEM_ROOF_I8_DOT(sum) \
  asm("" : "+v"(x));            \
  sum = _mm512_add_epi32(sum, _mm512_madd_epi16(_mm512_maddubs_epi16(x, y), ones))
#endif
TANDEM_ROOF_I8 inline float roof_dot_i8(size_t count, double& operations) {
  volatile int seed = 0x01010101;
  __m512i x = _mm512_set1_epi32(seed), y = _mm512_set1_epi32(seed);
  [[maybe_unused]] const __m512i ones = _mm512_set1_epi16(1);
  constexpr int kSums = 16;
  __m512i sums[kSums];
  for (__m512i& sum : sums) sum = _mm512_setzero_si512();
  for (size_t i = 0; i < count; ++i) {
#pragma GCC unroll 16
    for (__m512i& sum : sums) {
      TANDEM_ROOF_I8_DOT(sum);
    }
  }
  __m512i total = _mm512_setzero_si512();
  for (const __m512i& sum : sums) total = _mm512_add_epi32(total, sum);
  operations += static_cast<double>(count) * kSums * 64 * 2;
  return static_cast<float>(_mm512_reduce_add_epi32(total));
}
#elif defined(__AVX2__)
inline float roof_dot_i8(size_t count, double& operations) {
  volatile int seed = 0x01010101;
  __m256i x = _mm256_set1_epi32(seed), y = _mm256_set1_epi32(seed);
  const __m256i ones = _mm256_set1_epi16(1);
  constexpr int kSums = 8;  // of 16 registers
  __m256i sums[kSums];
  for (__m256i& sum : sums) sum = _mm256_setzero_si256();
  for (size_t i = 0; i < count; ++i) {
#pragma GCC unroll 8
    for (__m256i& sum : sums) {
      asm("" : "+x"(x));
      sum = _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(x, y), ones));
    }
  }
  __m256i total = _mm256_setzero_si256();
  for (const __m256i& sum : sums) total = _mm256_add_epi32(total, sum);
  operations += static_cast<double>(count) * kSums * 32 * 2;
  return static_cast<float>(_mm256_extract_epi32(total, 0));
}
#else
inline float roof_dot_i8(size_t count, double& operations) {
  int8_t bytes[64];
  volatile int8_t seed = 1;
  for (int8_t& byte : bytes) byte = seed;
  int32_t sums[16] = {};
  for (size_t i = 0; i < count; ++i) {
    asm("" : "+m"(bytes));
    for (int j = 0; j < 64; ++j) sums[j / 4] += bytes[j] * bytes[63 - j];
  }
  operations += static_cast<double>(count) * 64 * 2;
  int32_t total = 0;
  for (const int32_t sum : sums) total += sum;
  return static_cast<float>(total);
}
#endif

constexpr bench::RoofLoops make_roof_loops(std::string_view table) noexcept {
  return {table, roof_read, roof_dot_bf16, roof_fma_f32, roof_dot_i8};
}

}  // namespace tandem::TANDEM_ISA_NAMESPACE
