// Integer products for AVX-512: lines of four unsigned columns of 16 rows, times four signed activations. The
// reference for what each function means; int8_avx2.h and int8_scalar.h give the same in their terms. All of
// them are exact. With __AVX512VNNI__ one VPDPBUSD takes a line, without it bytes are widened to 16 bits,
// even and odd ones apart, for VPMADDWD (VPMADDUBSW would saturate).
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels/isa/isa_namespace.h"

namespace tandem::TANDEM_ISA_NAMESPACE {

using IntVec = __m512i;  // one int32 a row

TANDEM_INLINE IntVec set1_int(int32_t x) {
  return _mm512_set1_epi32(x);
}
TANDEM_INLINE IntVec load_int(const float* p) {
  return _mm512_loadu_si512(p);
}
TANDEM_INLINE void store_int(float* p, IntVec v) {
  _mm512_storeu_si512(p, v);
}
TANDEM_INLINE IntVec add_int(IntVec x, IntVec y) {
  return _mm512_add_epi32(x, y);
}
TANDEM_INLINE Vec int_to_float(IntVec v) {
  return _mm512_cvtepi32_ps(v);
}

// The sum of x[i] + 128.
TANDEM_INLINE int32_t shifted_sum(const int8_t* x, uint32_t count) {
  const __m512i shift = _mm512_set1_epi8(-128);
  __m512i sum = _mm512_setzero_si512();
  uint32_t i = 0;
  for (; i + 64 <= count; i += 64)
    sum = _mm512_add_epi64(
        sum, _mm512_sad_epu8(_mm512_xor_si512(_mm512_loadu_si512(x + i), shift), _mm512_setzero_si512()));
  auto whole = static_cast<int32_t>(_mm512_reduce_add_epi64(sum));
  for (; i < count; ++i) whole += x[i] + 128;
  return whole;
}

// A line, four activations for all rows, and sum + the four products of each row.
#ifdef __AVX512VNNI__
inline constexpr int kInt8Accumulators = 24;
using ByteLine = __m512i;
using ByteQuad = __m512i;
TANDEM_INLINE ByteLine load_bytes(const std::byte* p) {
  return _mm512_loadu_si512(p);
}
TANDEM_INLINE ByteQuad broadcast_quad(uint32_t four) {
  return _mm512_set1_epi32(static_cast<int>(four));
}
TANDEM_INLINE IntVec dot_bytes(IntVec sum, ByteLine w, ByteQuad x) {
  return _mm512_dpbusd_epi32(sum, w, x);
}
#else
inline constexpr int kInt8Accumulators = 16;
struct ByteLine {
  __m512i even, odd;
};
using ByteQuad = ByteLine;
TANDEM_INLINE ByteLine load_bytes(const std::byte* p) {
  const __m512i line = _mm512_loadu_si512(p);
  return {_mm512_and_si512(line, _mm512_set1_epi16(0xff)), _mm512_srli_epi16(line, 8)};
}
TANDEM_INLINE ByteQuad broadcast_quad(uint32_t four) {
  const __m512i x = _mm512_set1_epi32(static_cast<int>(four));
  return {_mm512_srai_epi16(_mm512_slli_epi16(x, 8), 8), _mm512_srai_epi16(x, 8)};
}
TANDEM_INLINE IntVec dot_bytes(IntVec sum, const ByteLine& w, const ByteQuad& x) {
  return add_int(sum, add_int(_mm512_madd_epi16(w.even, x.even), _mm512_madd_epi16(w.odd, x.odd)));
}
#endif

}  // namespace tandem::TANDEM_ISA_NAMESPACE
