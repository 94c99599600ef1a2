// Vec for AVX2 with FMA: 16 float32 lanes in two registers. See simd_avx512.h for what the functions mean.
// Included once per table, under its flags.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/isa/isa_namespace.h"

namespace tandem::TANDEM_ISA_NAMESPACE {

struct Vec {
  __m256 lo, hi;
};

// Of 16 registers: 8 for accumulators (which also covers 4 cycles x 2 pipes of FMA), 4 for a line, the rest
// for activations.
inline constexpr int kBf16Accumulators = 4, kF32Accumulators = 4;
inline constexpr int kTileRows = 4;

TANDEM_INLINE Vec set1(float x) {
  return {_mm256_set1_ps(x), _mm256_set1_ps(x)};
}
TANDEM_INLINE Vec zero() {
  return {_mm256_setzero_ps(), _mm256_setzero_ps()};
}
TANDEM_INLINE Vec load(const float* p) {
  return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}
TANDEM_INLINE void store(float* p, Vec v) {
  _mm256_storeu_ps(p, v.lo);
  _mm256_storeu_ps(p + 8, v.hi);
}
TANDEM_INLINE void store_far(float* p, Vec v) {
  if (reinterpret_cast<uintptr_t>(p) % sizeof v.lo == 0) {
    _mm256_stream_ps(p, v.lo);
    _mm256_stream_ps(p + 8, v.hi);
  } else {
    store(p, v);
  }
}
TANDEM_INLINE void stores_done() {
  _mm_sfence();
}
// All ones in the lanes below n.
TANDEM_INLINE __m256i first_lanes(int n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
TANDEM_INLINE Vec load_partial(const float* p, uint32_t n) {
  const int lanes = static_cast<int>(n);
  // Without a lane to read, the address of the second half may lie beyond the array: use the first.
  return {_mm256_maskload_ps(p, first_lanes(lanes)),
          _mm256_maskload_ps(n > 8 ? p + 8 : p, first_lanes(lanes - 8))};
}
TANDEM_INLINE void store_partial(float* p, Vec v, uint32_t n) {
  const int lanes = static_cast<int>(n);
  _mm256_maskstore_ps(p, first_lanes(lanes), v.lo);
  _mm256_maskstore_ps(n > 8 ? p + 8 : p, first_lanes(lanes - 8), v.hi);
}

TANDEM_INLINE __m256 widen_lanes(__m128i bits) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}
TANDEM_INLINE __m128i narrow_lanes(__m256 v) {
  const __m256i bits = _mm256_castps_si256(v);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const __m256 nan = _mm256_cmp_ps(v, v, _CMP_UNORD_Q);
  const __m256i chosen =
      _mm256_castps_si256(_mm256_blendv_ps(_mm256_castsi256_ps(rounded), _mm256_castsi256_ps(quiet), nan));
  const __m256i high = _mm256_srli_epi32(chosen, 16);
  return _mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1));
}
TANDEM_INLINE Vec load_bf16(const uint16_t* p) {
  return {widen_lanes(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
          widen_lanes(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
}
TANDEM_INLINE Vec load_bf16_partial(const uint16_t* p, uint32_t n) {
  alignas(32) uint16_t lanes[16] = {};
  for (uint32_t i = 0; i < n; ++i) lanes[i] = p[i];
  return load_bf16(lanes);
}
TANDEM_INLINE void store_bf16(uint16_t* p, Vec v) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), narrow_lanes(v.lo));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8), narrow_lanes(v.hi));
}
TANDEM_INLINE void store_bf16_partial(uint16_t* p, Vec v, uint32_t n) {
  alignas(32) uint16_t lanes[16];
  store_bf16(lanes, v);
  for (uint32_t i = 0; i < n; ++i) p[i] = lanes[i];
}

TANDEM_INLINE Vec store_rounded(uint16_t* p, Vec v) {
  const __m128i lo = narrow_lanes(v.lo), hi = narrow_lanes(v.hi);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), lo);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8), hi);
  return {widen_lanes(lo), widen_lanes(hi)};
}

TANDEM_INLINE void store_rounded_pairs(std::byte* p, Vec& first, Vec& second) {
  alignas(32) uint16_t a[16], b[16];
  first = store_rounded(a, first);
  second = store_rounded(b, second);
  for (int i = 0; i < 16; i += 8) {
    const __m128i x = _mm_load_si128(reinterpret_cast<const __m128i*>(a + i));
    const __m128i y = _mm_load_si128(reinterpret_cast<const __m128i*>(b + i));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 4 * i), _mm_unpacklo_epi16(x, y));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 4 * i + 16), _mm_unpackhi_epi16(x, y));
  }
}

TANDEM_INLINE __m256i magnitude_of(__m256 v) {
  return _mm256_and_si256(_mm256_castps_si256(v), _mm256_set1_epi32(0x7fffffff));
}
TANDEM_INLINE Vec max_magnitude(Vec most, Vec x) {
  return {_mm256_castsi256_ps(_mm256_max_epi32(_mm256_castps_si256(most.lo), magnitude_of(x.lo))),
          _mm256_castsi256_ps(_mm256_max_epi32(_mm256_castps_si256(most.hi), magnitude_of(x.hi)))};
}
TANDEM_INLINE uint32_t reduce_magnitude(Vec most) {
  const __m256i half = _mm256_max_epi32(_mm256_castps_si256(most.lo), _mm256_castps_si256(most.hi));
  __m128i m = _mm_max_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
  m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
  m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1));
  return static_cast<uint32_t>(_mm_cvtsi128_si32(m));
}
// 16 whole numbers in [0, 255] or [-128, 127] as bytes.
TANDEM_INLINE __m128i pack_words(__m256i lo, __m256i hi) {
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(lo, hi), 0xd8);  // in order, 16 bits each
  return _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
}
TANDEM_INLINE __m256i e4m3_code(__m256 v) {
  const __m256i bits = _mm256_castps_si256(v), magnitude = magnitude_of(v);
  const __m256i small =
      _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_castsi256_ps(magnitude), _mm256_set1_ps(512.0f)));
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(magnitude, 20), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(magnitude, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7ffff)));
  const __m256i normal = _mm256_sub_epi32(_mm256_srli_epi32(rounded, 20), _mm256_set1_epi32(120 << 3));
  const __m256i is_small = _mm256_cmpgt_epi32(_mm256_set1_epi32(0x3c800000), magnitude);
  const __m256i code = _mm256_min_epi32(_mm256_blendv_epi8(normal, small, is_small), _mm256_set1_epi32(0x7e));
  // The sign as the sign of a byte, so that packing with signed saturation keeps all bits.
  const __m256i sign = _mm256_slli_epi32(_mm256_srai_epi32(bits, 31), 7);
  return _mm256_or_si256(code, sign);
}
TANDEM_INLINE void store_e4m3(uint8_t* p, Vec v) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), pack_words(e4m3_code(v.lo), e4m3_code(v.hi)));
}
TANDEM_INLINE __m256 e4m3_value(__m256i code) {
  const __m256i magnitude = _mm256_and_si256(code, _mm256_set1_epi32(0x7f));
  const __m256i normal = _mm256_add_epi32(_mm256_slli_epi32(magnitude, 20), _mm256_set1_epi32(120 << 23));
  const __m256i small =
      _mm256_castps_si256(_mm256_mul_ps(_mm256_cvtepi32_ps(magnitude), _mm256_set1_ps(0x1p-9f)));
  const __m256i is_small = _mm256_cmpgt_epi32(_mm256_set1_epi32(8), magnitude);
  const __m256i is_nan = _mm256_cmpeq_epi32(magnitude, _mm256_set1_epi32(0x7f));
  __m256i bits = _mm256_blendv_epi8(normal, small, is_small);
  bits = _mm256_blendv_epi8(bits, _mm256_set1_epi32(0x7fc00000), is_nan);
  const __m256i sign = _mm256_slli_epi32(_mm256_and_si256(code, _mm256_set1_epi32(0x80)), 24);
  return _mm256_castsi256_ps(_mm256_or_si256(bits, sign));
}
TANDEM_INLINE Vec load_e4m3(const uint8_t* p) {
  const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {e4m3_value(_mm256_cvtepu8_epi32(codes)),
          e4m3_value(_mm256_cvtepu8_epi32(_mm_srli_si128(codes, 8)))};
}
TANDEM_INLINE void store_i8(uint8_t* p, Vec v) {
  const __m256i least = _mm256_set1_epi32(-127);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                   pack_words(_mm256_max_epi32(_mm256_cvtps_epi32(v.lo), least),
                              _mm256_max_epi32(_mm256_cvtps_epi32(v.hi), least)));
}
TANDEM_INLINE Vec load_i8(const uint8_t* p) {
  const __m128i values = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(values)),
          _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(values, 8)))};
}

TANDEM_INLINE Vec add(Vec x, Vec y) {
  return {_mm256_add_ps(x.lo, y.lo), _mm256_add_ps(x.hi, y.hi)};
}
TANDEM_INLINE Vec sub(Vec x, Vec y) {
  return {_mm256_sub_ps(x.lo, y.lo), _mm256_sub_ps(x.hi, y.hi)};
}
TANDEM_INLINE Vec mul(Vec x, Vec y) {
  return {_mm256_mul_ps(x.lo, y.lo), _mm256_mul_ps(x.hi, y.hi)};
}
TANDEM_INLINE Vec div(Vec x, Vec y) {
  return {_mm256_div_ps(x.lo, y.lo), _mm256_div_ps(x.hi, y.hi)};
}
TANDEM_INLINE Vec fma(Vec x, Vec y, Vec z) {
  return {_mm256_fmadd_ps(x.lo, y.lo, z.lo), _mm256_fmadd_ps(x.hi, y.hi, z.hi)};
}
TANDEM_INLINE Vec max(Vec x, Vec y) {
  return {_mm256_max_ps(x.lo, y.lo), _mm256_max_ps(x.hi, y.hi)};
}
TANDEM_INLINE Vec min(Vec x, Vec y) {
  return {_mm256_min_ps(x.lo, y.lo), _mm256_min_ps(x.hi, y.hi)};
}

TANDEM_INLINE Vec round_even(Vec x) {
  constexpr int kMode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(x.lo, kMode), _mm256_round_ps(x.hi, kMode)};
}
TANDEM_INLINE __m256 power_of_two(__m256 n) {
  return _mm256_castsi256_ps(
      _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23));
}
TANDEM_INLINE Vec power_of_two(Vec n) {
  return {power_of_two(n.lo), power_of_two(n.hi)};
}
TANDEM_INLINE Vec times_power_of_two(Vec x, Vec n) {
  // In two steps, of which the first is exact: 2^n itself may be out of range.
  const Vec half = round_even(mul(n, set1(0.5f)));
  return mul(mul(x, power_of_two(half)), power_of_two(sub(n, half)));
}

TANDEM_INLINE Vec scale_by_power(Vec x, Vec n) {
  // In two steps: 2^n itself may be out of range.
  const Vec half = round_even(mul(n, set1(0.5f)));
  return mul(mul(x, power_of_two(half)), power_of_two(sub(n, half)));
}

TANDEM_INLINE float reduce_add(Vec v) {
  const __m256 half = _mm256_add_ps(v.lo, v.hi);
  __m128 sum = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
  return _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)));
}
TANDEM_INLINE float reduce_max(Vec v) {
  const __m256 half = _mm256_max_ps(v.lo, v.hi);
  __m128 most = _mm_max_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  most = _mm_max_ps(most, _mm_movehl_ps(most, most));
  return _mm_cvtss_f32(_mm_max_ss(most, _mm_movehdup_ps(most)));
}
TANDEM_INLINE Vec reduce_add_16(const Vec (&v)[16]) {
  alignas(32) float sums[16];
  for (int i = 0; i < 16; ++i) sums[i] = reduce_add(v[i]);
  return load(sums);
}

struct Pairs {
  Vec even, odd;
};
TANDEM_INLINE __m256 even_of(__m256i bits) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(bits, 16));
}
TANDEM_INLINE __m256 odd_of(__m256i bits) {
  return _mm256_castsi256_ps(_mm256_and_si256(bits, _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
}
TANDEM_INLINE Pairs load_pairs(const std::byte* p) {
  const __m256i lo = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  const __m256i hi = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32));
  return {{even_of(lo), even_of(hi)}, {odd_of(lo), odd_of(hi)}};
}
TANDEM_INLINE Pairs load_even_pairs(const std::byte* p) {
  return {load_pairs(p).even, zero()};
}
TANDEM_INLINE Pairs broadcast_pair(uint32_t pair) {
  const __m256i bits = _mm256_set1_epi32(static_cast<int>(pair));
  return {{even_of(bits), even_of(bits)}, {odd_of(bits), odd_of(bits)}};
}
TANDEM_INLINE void interleave_pairs(const uint16_t* first, const uint16_t* second, Pairs (&pairs)[2]) {
  pairs[0] = {load_bf16(first), load_bf16(second)};
  pairs[1] = {load_bf16(first + 16), load_bf16(second + 16)};
}
TANDEM_INLINE void restore_pair_order(float*) {}
TANDEM_INLINE Vec dot_pairs(Vec sum, const Pairs& w, const Pairs& x) {
  return fma(w.odd, x.odd, fma(w.even, x.even, sum));
}

TANDEM_INLINE void prefetch(const void* p) {
  _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1);
}

}  // namespace tandem::TANDEM_ISA_NAMESPACE
