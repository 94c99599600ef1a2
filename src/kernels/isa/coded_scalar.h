// Codes of fp8_block and mxfp4 weights as bf16 pairs, as plain C++. See coded_avx512.h for what the functions
// mean.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

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
  uint32_t lanes[16];
};
using PairBits = Codes;

TANDEM_INLINE Codes load_codes(const std::byte* p) {
  Codes codes;
  std::memcpy(&codes, p, sizeof codes);
  return codes;
}
TANDEM_INLINE void store_bits(std::byte* p, const PairBits& bits) {
  std::memcpy(p, &bits, sizeof bits);
}
TANDEM_INLINE Pairs pairs_of(const PairBits& bits) {
  std::byte line[64];
  store_bits(line, bits);
  return load_pairs(line);
}

TANDEM_INLINE uint32_t e2m1_bits(uint32_t code) {
  // 0 and 0.5 are below the smallest normal number of e2m1.
  const uint32_t magnitude = code & 7;
  const uint32_t bits = magnitude < 2 ? magnitude * 0x3f00 : (magnitude << 6) + (126u << 7);
  return bits | (code & 8) << 12;
}
template <int K>
TANDEM_INLINE PairBits e2m1_bits(const Codes& codes) {
  PairBits bits;
  for (int i = 0; i < 16; ++i) {
    const uint32_t pair = codes.lanes[i] >> (4 * K);
    bits.lanes[i] = e2m1_bits(pair & 15) | e2m1_bits(pair >> 16 & 15) << 16;
  }
  return bits;
}

TANDEM_INLINE uint32_t e4m3_bits(uint32_t code) {
  const uint32_t magnitude = code & 0x7f;
  const uint32_t small = bits_of(static_cast<float>(magnitude) * 0x1p-9f) >> 16;
  return (magnitude < 8 ? small : (magnitude << 4) + (120u << 7)) | (code & 0x80) << 8;
}
template <int K>
TANDEM_INLINE PairBits e4m3_bits(const Codes& codes) {
  PairBits bits;
  for (int i = 0; i < 16; ++i) {
    const uint32_t pair = codes.lanes[i] >> (K == 0 ? 8 : 0);
    bits.lanes[i] = e4m3_bits(pair & 0xff) | e4m3_bits(pair >> 16 & 0xff) << 16;
  }
  return bits;
}

TANDEM_INLINE float float_bits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
TANDEM_INLINE Vec e8m0_ratio(const uint8_t* from, const uint8_t* to) {
  float lanes[16];
  for (int i = 0; i < 16; ++i) lanes[i] = float_bits((127u + from[i] - to[i]) << 23);
  return load(lanes);
}
TANDEM_INLINE Vec e8m0_scale(const uint8_t* p) {
  float lanes[16];
  for (int i = 0; i < 16; ++i) lanes[i] = float_bits(p[i] == 0 ? 0x00400000u : uint32_t{p[i]} << 23);
  return load(lanes);
}

}  // namespace tandem::TANDEM_ISA_NAMESPACE
