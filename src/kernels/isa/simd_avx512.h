// Vec for AVX-512: 16 float32 lanes. The reference for what each function means; simd_avx2.h and
// simd_scalar.h give the same in their terms. Included once per table, under its flags: with __AVX512BF16__
// pairs go through VDPBF16PS, which reads denormals as zero, without it they are widened and fused, even
// column first.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/isa/isa_namespace.h"

namespace tandem::TANDEM_ISA_NAMESPACE {

using Vec = __m512;

// Accumulators that a register tile may hold, by weight format, of 32 registers. A fused multiply-add takes 4
// cycles (a bf16 dot 5 to 6) and one or two start each cycle, so 8 to 12 suffice to fill the pipes; more of
// them use each loaded line more often. Without the bf16 dot each line takes two registers and a mask.
#ifdef __AVX512BF16__
inline constexpr int kBf16Accumulators = 24, kF32Accumulators = 24;
#else
inline constexpr int kBf16Accumulators = 16, kF32Accumulators = 24;
#endif
inline constexpr int kTileRows = 6;

TANDEM_INLINE Vec set1(float x) {
  return _mm512_set1_ps(x);
}
TANDEM_INLINE Vec zero() {
  return _mm512_setzero_ps();
}
TANDEM_INLINE __mmask16 first_lanes(uint32_t n) {
  return static_cast<__mmask16>((1u << n) - 1);
}
TANDEM_INLINE Vec load(const float* p) {
  return _mm512_loadu_ps(p);
}
TANDEM_INLINE void store(float* p, Vec v) {
  _mm512_storeu_ps(p, v);
}
// Past the caches, where the pointer is a line's: nobody reads it soon, and the line need not be read first.
// Other threads see it after stores_done.
TANDEM_INLINE void store_far(float* p, Vec v) {
  if (reinterpret_cast<uintptr_t>(p) % sizeof v == 0) {
    _mm512_stream_ps(p, v);
  } else {
    _mm512_storeu_ps(p, v);
  }
}
TANDEM_INLINE void stores_done() {
  _mm_sfence();
}
// The first n < 16 elements, the other lanes 0; nothing beyond them is read.
TANDEM_INLINE Vec load_partial(const float* p, uint32_t n) {
  return _mm512_maskz_loadu_ps(first_lanes(n), p);
}
TANDEM_INLINE void store_partial(float* p, Vec v, uint32_t n) {
  _mm512_mask_storeu_ps(p, first_lanes(n), v);
}

TANDEM_INLINE Vec widen_lanes(__m256i bits) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}
// Round to nearest even; NaN stays NaN, denormals stay (VCVTNEPS2BF16 would flush them).
TANDEM_INLINE __m256i narrow_lanes(Vec v) {
  const __m512i bits = _mm512_castps_si512(v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
  const __m512i chosen = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000));
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(chosen, 16));
}
TANDEM_INLINE Vec load_bf16(const uint16_t* p) {
  return widen_lanes(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
TANDEM_INLINE Vec load_bf16_partial(const uint16_t* p, uint32_t n) {
  return widen_lanes(_mm256_maskz_loadu_epi16(first_lanes(n), p));
}
TANDEM_INLINE void store_bf16(uint16_t* p, Vec v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrow_lanes(v));
}
TANDEM_INLINE void store_bf16_partial(uint16_t* p, Vec v, uint32_t n) {
  _mm256_mask_storeu_epi16(p, first_lanes(n), narrow_lanes(v));
}

// Stores 16 values as bf16, as factors of dot_pairs (denormals may become 0), and returns what was stored.
TANDEM_INLINE Vec store_rounded(uint16_t* p, Vec v) {
#ifdef __AVX512BF16__
  const __m256i bits = reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(v));
#else
  const __m256i bits = narrow_lanes(v);
#endif
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), bits);
  return widen_lanes(bits);
}

// 16 pairs of them; first and second become what was stored.
TANDEM_INLINE void store_rounded_pairs(std::byte* p, Vec& first, Vec& second) {
#ifdef __AVX512BF16__
  const __m256i a = reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(first));
  const __m256i b = reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(second));
#else
  const __m256i a = narrow_lanes(first), b = narrow_lanes(second);
#endif
  first = widen_lanes(a);
  second = widen_lanes(b);
  _mm512_storeu_si512(p, _mm512_or_si512(_mm512_cvtepu16_epi32(a), _mm512_castps_si512(second)));
}

// For quantised rows. Magnitudes are compared as integers: NaN is above infinity. `most` has no sign bits.
TANDEM_INLINE Vec max_magnitude(Vec most, Vec x) {
  const __m512i bits = _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7fffffff));
  return _mm512_castsi512_ps(_mm512_max_epi32(_mm512_castps_si512(most), bits));
}
TANDEM_INLINE uint32_t reduce_magnitude(Vec most) {
  return static_cast<uint32_t>(_mm512_reduce_max_epi32(_mm512_castps_si512(most)));
}
// 16 e4m3 values: to nearest even, saturating at 448. Below 2^-6 they are multiples of 2^-9. Not for NaN.
TANDEM_INLINE void store_e4m3(uint8_t* p, Vec v) {
  const __m512i bits = _mm512_castps_si512(v);
  const __m512i magnitude = _mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff));
  const __m512i small =
      _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_castsi512_ps(magnitude), _mm512_set1_ps(512.0f)));
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(magnitude, 20), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(magnitude, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7ffff)));
  const __m512i normal = _mm512_sub_epi32(_mm512_srli_epi32(rounded, 20), _mm512_set1_epi32(120 << 3));
  const __mmask16 is_small = _mm512_cmplt_epi32_mask(magnitude, _mm512_set1_epi32(0x3c800000));
  const __m512i code =
      _mm512_min_epi32(_mm512_mask_mov_epi32(normal, is_small, small), _mm512_set1_epi32(0x7e));
  const __m512i sign = _mm512_and_si512(_mm512_srli_epi32(bits, 24), _mm512_set1_epi32(0x80));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(_mm512_or_si512(code, sign)));
}
TANDEM_INLINE Vec load_e4m3(const uint8_t* p) {
  const __m512i code = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  const __m512i magnitude = _mm512_and_si512(code, _mm512_set1_epi32(0x7f));
  const __m512i normal = _mm512_add_epi32(_mm512_slli_epi32(magnitude, 20), _mm512_set1_epi32(120 << 23));
  const __m512i small =
      _mm512_castps_si512(_mm512_mul_ps(_mm512_cvtepi32_ps(magnitude), _mm512_set1_ps(0x1p-9f)));
  const __mmask16 is_small = _mm512_cmplt_epi32_mask(magnitude, _mm512_set1_epi32(8));
  const __mmask16 is_nan = _mm512_cmpeq_epi32_mask(magnitude, _mm512_set1_epi32(0x7f));
  __m512i bits = _mm512_mask_mov_epi32(normal, is_small, small);
  bits = _mm512_mask_mov_epi32(bits, is_nan, _mm512_set1_epi32(0x7fc00000));
  const __m512i sign = _mm512_slli_epi32(_mm512_and_si512(code, _mm512_set1_epi32(0x80)), 24);
  return _mm512_castsi512_ps(_mm512_or_si512(bits, sign));
}
// 16 int8 values: to nearest even, saturating at 127 either way. Not for NaN; |v| < 2^22.
TANDEM_INLINE void store_i8(uint8_t* p, Vec v) {
  const __m512i whole = _mm512_max_epi32(_mm512_cvtps_epi32(v), _mm512_set1_epi32(-127));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtsepi32_epi8(whole));
}
TANDEM_INLINE Vec load_i8(const uint8_t* p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}

TANDEM_INLINE Vec add(Vec x, Vec y) {
  return _mm512_add_ps(x, y);
}
TANDEM_INLINE Vec sub(Vec x, Vec y) {
  return _mm512_sub_ps(x, y);
}
TANDEM_INLINE Vec mul(Vec x, Vec y) {
  return _mm512_mul_ps(x, y);
}
TANDEM_INLINE Vec div(Vec x, Vec y) {
  return _mm512_div_ps(x, y);
}
// x * y + z
TANDEM_INLINE Vec fma(Vec x, Vec y, Vec z) {
  return _mm512_fmadd_ps(x, y, z);
}
// y when either is NaN.
TANDEM_INLINE Vec max(Vec x, Vec y) {
  return _mm512_max_ps(x, y);
}
TANDEM_INLINE Vec min(Vec x, Vec y) {
  return _mm512_min_ps(x, y);
}

// The nearest integer, ties to even, for |x| < 2^22.
TANDEM_INLINE Vec round_even(Vec x) {
  return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
// x * 2^n for whole n in [-150, 129] and x from 0.5 to 2, rounded once; NaN for NaN.
TANDEM_INLINE Vec times_power_of_two(Vec x, Vec n) {
  return _mm512_scalef_ps(x, n);
}

// x * 2^n for whole n.
TANDEM_INLINE Vec scale_by_power(Vec x, Vec n) {
  return _mm512_scalef_ps(x, n);
}

// Sums and maxima over the lanes. The order is fixed: halves, quarters, pairs.
TANDEM_INLINE float reduce_add(Vec v) {
  v = add(v, _mm512_shuffle_f32x4(v, v, 0x4e));
  v = add(v, _mm512_shuffle_f32x4(v, v, 0xb1));
  v = add(v, _mm512_permute_ps(v, 0x4e));
  v = add(v, _mm512_permute_ps(v, 0xb1));
  return _mm512_cvtss_f32(v);
}
TANDEM_INLINE float reduce_max(Vec v) {
  v = max(v, _mm512_shuffle_f32x4(v, v, 0x4e));
  v = max(v, _mm512_shuffle_f32x4(v, v, 0xb1));
  v = max(v, _mm512_permute_ps(v, 0x4e));
  v = max(v, _mm512_permute_ps(v, 0xb1));
  return _mm512_cvtss_f32(v);
}
// Lane i is the sum over the lanes of v[i]; the same order for each.
TANDEM_INLINE Vec reduce_add_16(const Vec (&v)[16]) {
  Vec halves[8], quarters[4], pairs[2];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    halves[i] = add(_mm512_shuffle_f32x4(v[i], v[i + 8], 0x44), _mm512_shuffle_f32x4(v[i], v[i + 8], 0xee));
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    quarters[i] = add(_mm512_shuffle_f32x4(halves[i], halves[i + 4], 0x88),
                      _mm512_shuffle_f32x4(halves[i], halves[i + 4], 0xdd));
  }
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    const __m512d a = _mm512_castps_pd(quarters[i]), b = _mm512_castps_pd(quarters[i + 2]);
    pairs[i] = add(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)), _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
  }
  const Vec sums =
      add(_mm512_shuffle_ps(pairs[0], pairs[1], 0x88), _mm512_shuffle_ps(pairs[0], pairs[1], 0xdd));
  // Lanes now hold 0 2 1 3, 8 10 9 11, 4 6 5 7, 12 14 13 15.
  return _mm512_permutexvar_ps(_mm512_setr_epi32(0, 2, 1, 3, 8, 10, 9, 11, 4, 6, 5, 7, 12, 14, 13, 15), sums);
}

// A line of bf16 pairs (two columns of 16 rows), a pair of activations for all lanes, and sum + both
// products.
#ifdef __AVX512BF16__
using Pairs = __m512i;
TANDEM_INLINE Pairs load_pairs(const std::byte* p) {
  return _mm512_loadu_si512(p);
}
// With zeros for the second of each pair.
TANDEM_INLINE Pairs load_even_pairs(const std::byte* p) {
  return _mm512_and_si512(_mm512_loadu_si512(p), _mm512_set1_epi32(0xffff));
}
TANDEM_INLINE Pairs broadcast_pair(uint32_t pair) {
  return _mm512_set1_epi32(static_cast<int>(pair));
}
// 32 values of two rows side by side, in the order of the processor's unpacking, which restore_pair_order
// undoes for 32 sums.
TANDEM_INLINE void interleave_pairs(const uint16_t* first, const uint16_t* second, Pairs (&pairs)[2]) {
  const __m512i a = _mm512_loadu_si512(first), b = _mm512_loadu_si512(second);
  pairs[0] = _mm512_unpacklo_epi16(a, b);
  pairs[1] = _mm512_unpackhi_epi16(a, b);
}
TANDEM_INLINE void restore_pair_order(float* sums) {
  const Vec low = load(sums), high = load(sums + 16);  // 4 of each in turn
  store(sums, _mm512_permutex2var_ps(
                  low, _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23), high));
  store(sums + 16,
        _mm512_permutex2var_ps(
            low, _mm512_setr_epi32(8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31), high));
}
TANDEM_INLINE Vec dot_pairs(Vec sum, Pairs w, Pairs x) {
  return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(w), reinterpret_cast<__m512bh>(x));
}
#else
struct Pairs {
  Vec even, odd;
};
TANDEM_INLINE Pairs split_pairs(__m512i bits) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(bits, 16)),
          _mm512_castsi512_ps(_mm512_and_si512(bits, _mm512_set1_epi32(static_cast<int>(0xffff0000u))))};
}
TANDEM_INLINE Pairs load_pairs(const std::byte* p) {
  return split_pairs(_mm512_loadu_si512(p));
}
TANDEM_INLINE Pairs load_even_pairs(const std::byte* p) {
  return split_pairs(_mm512_and_si512(_mm512_loadu_si512(p), _mm512_set1_epi32(0xffff)));
}
TANDEM_INLINE Pairs broadcast_pair(uint32_t pair) {
  return split_pairs(_mm512_set1_epi32(static_cast<int>(pair)));
}
TANDEM_INLINE void interleave_pairs(const uint16_t* first, const uint16_t* second, Pairs (&pairs)[2]) {
  pairs[0] = {load_bf16(first), load_bf16(second)};
  pairs[1] = {load_bf16(first + 16), load_bf16(second + 16)};
}
TANDEM_INLINE void restore_pair_order(float*) {}
TANDEM_INLINE Vec dot_pairs(Vec sum, const Pairs& w, const Pairs& x) {
  return fma(w.odd, x.odd, fma(w.even, x.even, sum));
}
#endif

// Into L2: requests for L1 hold one of its few miss buffers until memory answers.
TANDEM_INLINE void prefetch(const void* p) {
  _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1);
}

}  // namespace tandem::TANDEM_ISA_NAMESPACE
