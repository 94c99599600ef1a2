// Codes of fp8_block and mxfp4 weights as bf16 pairs, for AVX-512. The reference for what each function
// means; coded_avx2.h and coded_scalar.h give the same in their terms. Both formats are exact in bfloat16.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels/isa/isa_namespace.h"

namespace tandem::TANDEM_ISA_NAMESPACE {

// Accumulators of a tile that decodes as it goes: each line in flight takes a register for its codes and one
// for its pairs, and the tables and masks up to four.
inline constexpr int kCodedAccumulators = 16;

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
// VDPBF16PS reads as zero: for those the table holds what is to be added instead.
template <int K>
TANDEM_INLINE PairBits e4m3_bits(Codes codes) {
  alignas(64) static constexpr short kSmall[32] = {0, 0x3af0, 0x3b60, 0x3b90, 0x3bc0, 0x3bd0, 0x3be0, 0x3bf0};
  const __m512i high = K == 0 ? codes : _mm512_slli_epi16(codes, 8);
  const __m512i index = K == 0 ? _mm512_srli_epi16(codes, 8) : codes;
  const __m512i moved =
      _mm512_and_si512(_mm512_srai_epi16(high, 4), _mm512_set1_epi16(static_cast<short>(0x87f0)));
  const __mmask32 small = _mm512_testn_epi16_mask(moved, _mm512_set1_epi16(0x0780));
  const __m512i bias =
      _mm512_mask_permutexvar_epi16(_mm512_set1_epi16(0x3c00), small, index, _mm512_load_si512(kSmall));
  return _mm512_add_epi16(moved, bias);
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
