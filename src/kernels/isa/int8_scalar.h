// Integer products as plain C++. See int8_avx512.h for what the functions mean.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/isa/isa_namespace.h"

namespace tandem::TANDEM_ISA_NAMESPACE {

inline constexpr int kInt8Accumulators = kBf16Accumulators;

struct IntVec {
  int32_t lanes[16];
};

TANDEM_INLINE IntVec set1_int(int32_t x) {
  IntVec v;
  for (int32_t& lane : v.lanes) lane = x;
  return v;
}
TANDEM_INLINE IntVec load_int(const float* p) {
  IntVec v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
TANDEM_INLINE void store_int(float* p, const IntVec& v) {
  std::memcpy(p, &v, sizeof v);
}
TANDEM_INLINE IntVec add_int(const IntVec& x, const IntVec& y) {
  IntVec sum;
  for (int i = 0; i < 16; ++i) sum.lanes[i] = x.lanes[i] + y.lanes[i];
  return sum;
}
TANDEM_INLINE Vec int_to_float(const IntVec& v) {
  float lanes[16];
  for (int i = 0; i < 16; ++i) lanes[i] = static_cast<float>(v.lanes[i]);
  return load(lanes);
}

TANDEM_INLINE int32_t shifted_sum(const int8_t* x, uint32_t count) {
  int32_t sum = 0;
  for (uint32_t i = 0; i < count; ++i) sum += x[i] + 128;
  return sum;
}

struct ByteLine {
  uint8_t bytes[64];
};
struct ByteQuad {
  int8_t columns[4];
};
TANDEM_INLINE ByteLine load_bytes(const std::byte* p) {
  ByteLine line;
  std::memcpy(&line, p, sizeof line);
  return line;
}
TANDEM_INLINE ByteQuad broadcast_quad(uint32_t four) {
  ByteQuad quad;
  std::memcpy(&quad, &four, sizeof quad);
  return quad;
}
TANDEM_INLINE IntVec dot_bytes(IntVec sum, const ByteLine& w, const ByteQuad& x) {
  for (int i = 0; i < 16; ++i) {
    for (int c = 0; c < 4; ++c) sum.lanes[i] += w.bytes[4 * i + c] * x.columns[c];
  }
  return sum;
}

}  // namespace tandem::TANDEM_ISA_NAMESPACE
