// Vec for the scalar table: 16 float32 lanes as plain C++ (GCC's vector types, which every target has). A
// product and a sum are rounded separately. See simd_avx512.h for what the functions mean. Included once per
// table, under its flags.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/isa/isa_namespace.h"

namespace tandem::TANDEM_ISA_NAMESPACE {

// Accumulators (in Vec) that a register tile may hold, by weight format.
inline constexpr int kBf16Accumulators = 2, kF32Accumulators = 2;
inline constexpr int kTileRows = 2;

typedef float Quad __attribute__((vector_size(16)));
typedef int32_t QuadInt __attribute__((vector_size(16)));

struct Vec {
  Quad a, b, c, d;
};

TANDEM_INLINE Quad quad(float x) {
  return Quad{x, x, x, x};
}
TANDEM_INLINE Vec set1(float x) {
  return {quad(x), quad(x), quad(x), quad(x)};
}
TANDEM_INLINE Vec zero() {
  return set1(0.0f);
}
TANDEM_INLINE Vec load(const float* p) {
  Vec v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
TANDEM_INLINE void store(float* p, Vec v) {
  std::memcpy(p, &v, sizeof v);
}
TANDEM_INLINE void store_far(float* p, Vec v) {
  store(p, v);
}
TANDEM_INLINE void stores_done() {}
TANDEM_INLINE Vec load_partial(const float* p, uint32_t n) {
  float lanes[16] = {};
  for (uint32_t i = 0; i < n; ++i) lanes[i] = p[i];
  return load(lanes);
}
TANDEM_INLINE void store_partial(float* p, Vec v, uint32_t n) {
  float lanes[16];
  store(lanes, v);
  for (uint32_t i = 0; i < n; ++i) p[i] = lanes[i];
}

TANDEM_INLINE float widen(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}
TANDEM_INLINE uint16_t narrow(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
TANDEM_INLINE Vec load_bf16_partial(const uint16_t* p, uint32_t n) {
  float lanes[16] = {};
  for (uint32_t i = 0; i < n; ++i) lanes[i] = widen(p[i]);
  return load(lanes);
}
TANDEM_INLINE Vec load_bf16(const uint16_t* p) {
  float lanes[16];
  for (uint32_t i = 0; i < 16; ++i) lanes[i] = widen(p[i]);
  return load(lanes);
}
TANDEM_INLINE void store_bf16_partial(uint16_t* p, Vec v, uint32_t n) {
  float lanes[16];
  store(lanes, v);
  for (uint32_t i = 0; i < n; ++i) p[i] = narrow(lanes[i]);
}
TANDEM_INLINE void store_bf16(uint16_t* p, Vec v) {
  store_bf16_partial(p, v, 16);
}

TANDEM_INLINE Vec store_rounded(uint16_t* p, Vec v) {
  store_bf16(p, v);
  return load_bf16(p);
}

TANDEM_INLINE void store_rounded_pairs(std::byte* p, Vec& first, Vec& second) {
  uint16_t a[16], b[16];
  first = store_rounded(a, first);
  second = store_rounded(b, second);
  for (int i = 0; i < 16; ++i) {
    std::memcpy(p + 4 * i, a + i, 2);
    std::memcpy(p + 4 * i + 2, b + i, 2);
  }
}

TANDEM_INLINE uint32_t bits_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}
TANDEM_INLINE QuadInt max_magnitude(Quad most, Quad x) {
  const QuadInt m = reinterpret_cast<QuadInt>(most), bits = reinterpret_cast<QuadInt>(x) & 0x7fffffff;
  return m > bits ? m : bits;
}
TANDEM_INLINE Vec max_magnitude(Vec most, Vec x) {
  return {
      reinterpret_cast<Quad>(max_magnitude(most.a, x.a)), reinterpret_cast<Quad>(max_magnitude(most.b, x.b)),
      reinterpret_cast<Quad>(max_magnitude(most.c, x.c)), reinterpret_cast<Quad>(max_magnitude(most.d, x.d))};
}
TANDEM_INLINE uint32_t reduce_magnitude(Vec most) {
  float lanes[16];
  store(lanes, most);
  uint32_t largest = 0;
  for (int i = 0; i < 16; ++i) largest = bits_of(lanes[i]) > largest ? bits_of(lanes[i]) : largest;
  return largest;
}
// The nearest integer, ties to even, for |x| < 2^22: the lowest bits of x + 1.5 * 2^23.
TANDEM_INLINE int32_t nearest(float x) {
  return static_cast<int32_t>(bits_of(x + 12582912.0f)) - 0x4b400000;
}
TANDEM_INLINE void store_e4m3(uint8_t* p, Vec v) {
  float lanes[16];
  store(lanes, v);
  for (int i = 0; i < 16; ++i) {
    const uint32_t bits = bits_of(lanes[i]), magnitude = bits & 0x7fffffffu;
    uint32_t code = 0;
    if (magnitude < 0x3c800000u) {
      code = static_cast<uint32_t>(nearest((bits >> 31 != 0 ? -lanes[i] : lanes[i]) * 512.0f));
    } else {
      code = ((magnitude + 0x7ffffu + ((magnitude >> 20) & 1u)) >> 20) - (120 << 3);
    }
    p[i] = static_cast<uint8_t>((code > 0x7e ? 0x7e : code) | (bits >> 24 & 0x80u));
  }
}
TANDEM_INLINE Vec load_e4m3(const uint8_t* p) {
  float lanes[16];
  for (int i = 0; i < 16; ++i) {
    const uint32_t magnitude = p[i] & 0x7fu;
    const float small = static_cast<float>(magnitude) * 0x1p-9f;
    uint32_t bits = magnitude < 8 ? bits_of(small) : (magnitude << 20) + (120u << 23);
    if (magnitude == 0x7f) bits = 0x7fc00000u;
    bits |= (p[i] & 0x80u) << 24;
    std::memcpy(&lanes[i], &bits, sizeof bits);
  }
  return load(lanes);
}
TANDEM_INLINE void store_i8(uint8_t* p, Vec v) {
  float lanes[16];
  store(lanes, v);
  for (int i = 0; i < 16; ++i) {
    const int32_t whole = nearest(lanes[i]);
    p[i] = static_cast<uint8_t>(whole > 127 ? 127 : whole < -127 ? -127 : whole);
  }
}
TANDEM_INLINE Vec load_i8(const uint8_t* p) {
  float lanes[16];
  for (int i = 0; i < 16; ++i) lanes[i] = static_cast<float>(static_cast<int8_t>(p[i]));
  return load(lanes);
}

TANDEM_INLINE Vec add(Vec x, Vec y) {
  return {x.a + y.a, x.b + y.b, x.c + y.c, x.d + y.d};
}
TANDEM_INLINE Vec sub(Vec x, Vec y) {
  return {x.a - y.a, x.b - y.b, x.c - y.c, x.d - y.d};
}
TANDEM_INLINE Vec mul(Vec x, Vec y) {
  return {x.a * y.a, x.b * y.b, x.c * y.c, x.d * y.d};
}
TANDEM_INLINE Vec div(Vec x, Vec y) {
  return {x.a / y.a, x.b / y.b, x.c / y.c, x.d / y.d};
}
TANDEM_INLINE Vec fma(Vec x, Vec y, Vec z) {
  return add(mul(x, y), z);
}
TANDEM_INLINE Vec max(Vec x, Vec y) {
  return {x.a > y.a ? x.a : y.a, x.b > y.b ? x.b : y.b, x.c > y.c ? x.c : y.c, x.d > y.d ? x.d : y.d};
}
TANDEM_INLINE Vec min(Vec x, Vec y) {
  return {x.a < y.a ? x.a : y.a, x.b < y.b ? x.b : y.b, x.c < y.c ? x.c : y.c, x.d < y.d ? x.d : y.d};
}

// For |x| < 2^22: adding and taking away 1.5 * 2^23 leaves the nearest integer.
TANDEM_INLINE Vec round_even(Vec x) {
  const Vec magic = set1(12582912.0f);
  return sub(add(x, magic), magic);
}
// 2^n for whole n in [-126, 127]. The lowest bits of n + 1.5 * 2^23 are n; anything for NaN.
TANDEM_INLINE Quad power_of_two(Quad n) {
  const QuadInt bits = reinterpret_cast<QuadInt>(n + quad(12582912.0f));
  return reinterpret_cast<Quad>((bits + (127 - 0x4b400000)) << 23);
}
TANDEM_INLINE Vec power_of_two(Vec n) {
  return {power_of_two(n.a), power_of_two(n.b), power_of_two(n.c), power_of_two(n.d)};
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
  const Quad sum = (v.a + v.c) + (v.b + v.d);
  return (sum[0] + sum[2]) + (sum[1] + sum[3]);
}
TANDEM_INLINE float reduce_max(Vec v) {
  const Vec pair = max({v.a, v.b, v.a, v.b}, {v.c, v.d, v.c, v.d});
  const Quad q = pair.a > pair.b ? pair.a : pair.b;
  const float x = q[0] > q[1] ? q[0] : q[1];
  const float y = q[2] > q[3] ? q[2] : q[3];
  return x > y ? x : y;
}
TANDEM_INLINE Vec reduce_add_16(const Vec (&v)[16]) {
  float sums[16];
  for (int i = 0; i < 16; ++i) sums[i] = reduce_add(v[i]);
  return load(sums);
}

// One line of bf16 pairs, and one activation pair for all lanes.
struct Pairs {
  Vec even, odd;
};
TANDEM_INLINE void expand(const std::byte* p, Quad& even, Quad& odd) {
  QuadInt bits;
  std::memcpy(&bits, p, sizeof bits);
  even = reinterpret_cast<Quad>(bits << 16);
  odd = reinterpret_cast<Quad>(bits & static_cast<int32_t>(0xffff0000u));
}
TANDEM_INLINE Pairs load_pairs(const std::byte* p) {
  Pairs w;
  expand(p, w.even.a, w.odd.a);
  expand(p + 16, w.even.b, w.odd.b);
  expand(p + 32, w.even.c, w.odd.c);
  expand(p + 48, w.even.d, w.odd.d);
  return w;
}
TANDEM_INLINE Pairs load_even_pairs(const std::byte* p) {
  return {load_pairs(p).even, zero()};
}
TANDEM_INLINE Pairs broadcast_pair(uint32_t pair) {
  return {set1(widen(static_cast<uint16_t>(pair))), set1(widen(static_cast<uint16_t>(pair >> 16)))};
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
  __builtin_prefetch(p, 0, 2);
}

}  // namespace tandem::TANDEM_ISA_NAMESPACE
