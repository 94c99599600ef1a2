// Integer products for AVX2: bytes are widened to 16 bits, even and odd ones apart, for VPMADDWD (VPMADDUBSW
// would saturate). See int8_avx512.h for what the functions mean.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels/isa/isa_namespace.h"

namespace tandem::TANDEM_ISA_NAMESPACE {

inline constexpr int kInt8Accumulators = 4;

struct IntVec {
  __m256i lo, hi;
};

TANDEM_INLINE IntVec set1_int(int32_t x) {
  return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)};
}
TANDEM_INLINE IntVec load_int(const float* p) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 8))};
}
TANDEM_INLINE void store_int(float* p, IntVec v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), v.lo);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 8), v.hi);
}
TANDEM_INLINE IntVec add_int(IntVec x, IntVec y) {
  return {_mm256_add_epi32(x.lo, y.lo), _mm256_add_epi32(x.hi, y.hi)};
}
TANDEM_INLINE Vec int_to_float(IntVec v) {
  return {_mm256_cvtepi32_ps(v.lo), _mm256_cvtepi32_ps(v.hi)};
}

TANDEM_INLINE int32_t shifted_sum(const int8_t* x, uint32_t count) {
  const __m256i shift = _mm256_set1_epi8(-128);
  __m256i sum = _mm256_setzero_si256();
  uint32_t i = 0;
  for (; i + 32 <= count; i += 32) {
    const __m256i shifted =
        _mm256_xor_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + i)), shift);
    sum = _mm256_add_epi64(sum, _mm256_sad_epu8(shifted, _mm256_setzero_si256()));
  }
  int64_t lanes[4];
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(lanes), sum);
  auto whole = static_cast<int32_t>(lanes[0] + lanes[1] + lanes[2] + lanes[3]);
  for (; i < count; ++i) whole += x[i] + 128;
  return whole;
}

struct ByteLine {
  __m256i even_lo, odd_lo, even_hi, odd_hi;
};
struct ByteQuad {
  __m256i even, odd;
};
TANDEM_INLINE ByteLine load_bytes(const std::byte* p) {
  const __m256i lo = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  const __m256i hi = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32));
  const __m256i low = _mm256_set1_epi16(0xff);
  return {_mm256_and_si256(lo, low), _mm256_srli_epi16(lo, 8), _mm256_and_si256(hi, low),
          _mm256_srli_epi16(hi, 8)};
}
TANDEM_INLINE ByteQuad broadcast_quad(uint32_t four) {
  const __m256i x = _mm256_set1_epi32(static_cast<int>(four));
  return {_mm256_srai_epi16(_mm256_slli_epi16(x, 8), 8), _mm256_srai_epi16(x, 8)};
}
TANDEM_INLINE __m256i dot_bytes(__m256i sum, __m256i even, __m256i odd, const ByteQuad& x) {
  return _mm256_add_epi32(sum,
                          _mm256_add_epi32(_mm256_madd_epi16(even, x.even), _mm256_madd_epi16(odd, x.odd)));
}
TANDEM_INLINE IntVec dot_bytes(IntVec sum, const ByteLine& w, const ByteQuad& x) {
  return {dot_bytes(sum.lo, w.even_lo, w.odd_lo, x), dot_bytes(sum.hi, w.even_hi, w.odd_hi, x)};
}

}  // namespace tandem::TANDEM_ISA_NAMESPACE
