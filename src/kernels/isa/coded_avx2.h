// Codes of fp8_block and mxfp4 weights as bf16 pairs, for AVX2. See coded_avx512.h for what the functions
// mean.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels/isa/isa_namespace.h"
#include "kernels/packed_weight.h"

namespace tandem::TANDEM_ISA_NAMESPACE {

template <PackFormat>
inline constexpr int kCodedAccumulators = kBf16Accumulators;
template <PackFormat>
inline constexpr int kCodedRows = kTileRows;
// More than one tile: decoding takes as long as several rows.
inline constexpr bool kDecodeOnce = true;

struct Codes {
  __m256i lo, hi;
};
using PairBits = Codes;

TANDEM_INLINE Codes load_codes(const std::byte* p) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32))};
}
TANDEM_INLINE void store_bits(std::byte* p, PairBits bits) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), bits.lo);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 32), bits.hi);
}
TANDEM_INLINE Pairs pairs_of(PairBits bits) {
  return {{even_of(bits.lo), even_of(bits.hi)}, {odd_of(bits.lo), odd_of(bits.hi)}};
}

// 16-bit values low[i] | high[i] << 8 by the low four bits of each 16-bit index, whose other bits are zero.
// Entry 0 must be zero: a byte without an index of its own looks there.
TANDEM_INLINE __m256i look_up(__m256i index, __m128i low, __m128i high) {
  return _mm256_or_si256(_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(low), index),
                         _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(high), _mm256_slli_epi16(index, 8)));
}

template <int K>
TANDEM_INLINE __m256i e2m1_bits(__m256i codes) {
  constexpr char kSign = static_cast<char>(0x80), kHalf = static_cast<char>(0xc0);
  const __m128i low =
      _mm_setr_epi8(0, 0, kSign, kHalf, 0, 0x40, kSign, kHalf, 0, 0, kSign, kHalf, 0, 0x40, kSign, kHalf);
  constexpr char k3f = static_cast<char>(0xbf), k40 = static_cast<char>(0xc0);
  const __m128i high =
      _mm_setr_epi8(0, 0x3f, 0x3f, 0x3f, 0x40, 0x40, 0x40, 0x40, kSign, k3f, k3f, k3f, k40, k40, k40, k40);
  return look_up(_mm256_and_si256(_mm256_srli_epi16(codes, 4 * K), _mm256_set1_epi16(15)), low, high);
}
template <int K>
TANDEM_INLINE PairBits e2m1_bits(Codes codes) {
  return {e2m1_bits<K>(codes.lo), e2m1_bits<K>(codes.hi)};
}

template <int K>
TANDEM_INLINE __m256i e4m3_bits(__m256i codes) {
  const __m256i high = K == 0 ? codes : _mm256_slli_epi16(codes, 8);
  const __m256i moved =
      _mm256_and_si256(_mm256_srai_epi16(high, 4), _mm256_set1_epi16(static_cast<short>(0x87f0)));
  const __m256i small =
      _mm256_cmpeq_epi16(_mm256_and_si256(moved, _mm256_set1_epi16(0x0780)), _mm256_setzero_si256());
  const __m256i index = _mm256_and_si256(_mm256_srli_epi16(moved, 4), _mm256_set1_epi16(7));
  const __m128i low = _mm_setr_epi8(0, static_cast<char>(0xf0), 0x60, static_cast<char>(0x90),
                                    static_cast<char>(0xc0), static_cast<char>(0xd0), static_cast<char>(0xe0),
                                    static_cast<char>(0xf0), 0, 0, 0, 0, 0, 0, 0, 0);
  const __m128i top = _mm_setr_epi8(0, 0x3a, 0x3b, 0x3b, 0x3b, 0x3b, 0x3b, 0x3b, 0, 0, 0, 0, 0, 0, 0, 0);
  const __m256i bias = _mm256_blendv_epi8(_mm256_set1_epi16(0x3c00), look_up(index, low, top), small);
  return _mm256_add_epi16(moved, bias);
}
template <int K>
TANDEM_INLINE PairBits e4m3_bits(Codes codes) {
  return {e4m3_bits<K>(codes.lo), e4m3_bits<K>(codes.hi)};
}

TANDEM_INLINE __m256i load_e8m0(const uint8_t* p) {
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
}
TANDEM_INLINE __m256 e8m0_ratio_half(const uint8_t* from, const uint8_t* to) {
  const __m256i power = _mm256_sub_epi32(load_e8m0(from), load_e8m0(to));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(power, _mm256_set1_epi32(127)), 23));
}
TANDEM_INLINE Vec e8m0_ratio(const uint8_t* from, const uint8_t* to) {
  return {e8m0_ratio_half(from, to), e8m0_ratio_half(from + 8, to + 8)};
}
TANDEM_INLINE __m256 e8m0_scale_half(const uint8_t* p) {
  const __m256i power = load_e8m0(p);
  const __m256i least = _mm256_cmpeq_epi32(power, _mm256_setzero_si256());
  return _mm256_castsi256_ps(
      _mm256_blendv_epi8(_mm256_slli_epi32(power, 23), _mm256_set1_epi32(0x00400000), least));
}
TANDEM_INLINE Vec e8m0_scale(const uint8_t* p) {
  return {e8m0_scale_half(p), e8m0_scale_half(p + 8)};
}

}  // namespace tandem::TANDEM_ISA_NAMESPACE
