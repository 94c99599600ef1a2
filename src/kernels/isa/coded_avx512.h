// Codes of fp8_block and mxfp4 weights as bf16 pairs, for AVX-512. The reference for what each function
// means; coded_avx2.h and coded_scalar.h give the same in their terms. Both formats are exact in bfloat16.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels/isa/isa_namespace.h"
#include "kernels/packed_weight.h"

namespace tandem::TANDEM_ISA_NAMESPACE {

// The tile that decodes as it goes: accumulators and rows at most. A pair of fp8 takes six instructions, so
// it should be used often: eight rows of two panels reach 92 % of the dot peak on Zen 4, six of two 86 %, six
// of four, where registers run short, 83 %. Of mxfp4 two, and six rows of four panels reach 88 %, eight of
// two 85 %. Without the bf16 dot a pair takes two registers.
#ifdef __AVX512BF16__
template <PackFormat Format>
inline constexpr int kCodedAccumulators = Format == PackFormat::mxfp4 ? 24 : 16;
template <PackFormat Format>
inline constexpr int kCodedRows = Format == PackFormat::mxfp4 ? 6 : 8;
#else
template <PackFormat Format>
inline constexpr int kCodedAccumulators = 16;
template <PackFormat Format>
inline constexpr int kCodedRows = 8;
#endif
// Every tile decodes, whatever their number: that is never slower than to decode once into the cache (192
// rows: 91 % for both; 16 rows: 91 and 77 % in fp8, 86 and 76 % in mxfp4).
inline constexpr bool kDecodeOnce = false;

// A line of codes, and the bf16 pairs of one of its steps (the bits of a line of a bf16 weight).
using Codes = __m512i;
using PairBits = __m512i;

TANDEM_INLINE Codes load_codes(const std::byte* p) {
  return _mm512_loadu_si512(p);
}
TANDEM_INLINE void store_bits(std::byte* p, PairBits bits) {
  _mm512_storeu_si512(p, bits);
}
TANDEM_INLINE Pairs pairs_of(PairBits bits) {
#ifdef __AVX512BF16__
  return bits;
#else
  return split_pairs(bits);
#endif
}

// Pair K of a line of e2m1 codes. VPERMW looks at five bits of each index: the table is there twice, so that
// the next code's lowest bit need not be cleared.
template <int K>
TANDEM_INLINE PairBits e2m1_bits(Codes codes) {
  constexpr short kMinus = static_cast<short>(0x8000);
#define TANDEM_E2M1                                                                                    \
  0, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040, 0x4080, 0x40c0, kMinus, kMinus | 0x3f00, kMinus | 0x3f80, \
      kMinus | 0x3fc0, kMinus | 0x4000, kMinus | 0x4040, kMinus | 0x4080, kMinus | 0x40c0
  alignas(64) static constexpr short kTable[32] = {TANDEM_E2M1, TANDEM_E2M1};
#undef TANDEM_E2M1
  const __m512i index = K == 0 ? codes : _mm512_srli_epi16(codes, 4 * K);
  return _mm512_permutexvar_epi16(index, _mm512_load_si512(kTable));
}

// Pair K of a line of e4m3 codes, none of them NaN. A normal number's bits move as they are, sign to bit 15
// and the rest to bit 4, and the exponent's bias grows by 120. A number below 2^-6 would be a denormal, which
// VDPBF16PS reads as zero: for those the table holds what is to be added instead. Its index, the magnitude
// but 31 at most, is a byte; VPERMW looks at five bits of 16. (To test for small numbers into a mask instead
// keeps the pipes of the dot product busy: with six rows 73 % of the dot peak, this way 89 %.)
template <int K>
TANDEM_INLINE PairBits e4m3_bits(Codes codes) {
#define TANDEM_BIAS_8 0x3c00, 0x3c00, 0x3c00, 0x3c00, 0x3c00, 0x3c00, 0x3c00, 0x3c00
  alignas(64) static constexpr short kBias[32] = {
      0, 0x3af0, 0x3b60, 0x3b90, 0x3bc0, 0x3bd0, 0x3be0, 0x3bf0, TANDEM_BIAS_8, TANDEM_BIAS_8, TANDEM_BIAS_8};
#undef TANDEM_BIAS_8
  const __m512i magnitude = _mm512_and_si512(codes, _mm512_set1_epi8(0x7f));
  const __m512i low = _mm512_min_epu8(magnitude, _mm512_set1_epi8(31));
  const __m512i index = K == 0 ? _mm512_srli_epi16(low, 8) : low;
  const __m512i high = K == 0 ? codes : _mm512_slli_epi16(codes, 8);
  const __m512i moved =
      _mm512_and_si512(_mm512_srai_epi16(high, 4), _mm512_set1_epi16(static_cast<short>(0x87f0)));
  return _mm512_add_epi16(moved, _mm512_permutexvar_epi16(index, _mm512_load_si512(kBias)));
}

TANDEM_INLINE __m512i load_e8m0(const uint8_t* p) {
  return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
// 2^(from - to) of 16 e8m0 scales that differ by 126 at most.
TANDEM_INLINE Vec e8m0_ratio(const uint8_t* from, const uint8_t* to) {
  const __m512i power = _mm512_sub_epi32(load_e8m0(from), load_e8m0(to));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(power, _mm512_set1_epi32(127)), 23));
}
// 16 e8m0 scales, none of them NaN; 2^-127 is a denormal.
TANDEM_INLINE Vec e8m0_scale(const uint8_t* p) {
  const __m512i power = load_e8m0(p);
  const __m512i bits = _mm512_slli_epi32(power, 23);
  const __mmask16 least = _mm512_testn_epi32_mask(power, power);
  return _mm512_castsi512_ps(_mm512_mask_mov_epi32(bits, least, _mm512_set1_epi32(0x00400000)));
}

}  // namespace tandem::TANDEM_ISA_NAMESPACE
