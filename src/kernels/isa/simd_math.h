// Functions over Vec that are the same for every instruction set.
#pragma once

#include "kernels/isa/isa_namespace.h"

namespace tandem::TANDEM_ISA_NAMESPACE {

// e^x within 2 units in the last place (denormal results within one of theirs). 0 for -inf, inf for inf, NaN
// for NaN.
TANDEM_INLINE Vec exp(Vec x) {
  // e^-104 rounds to 0 and e^89 to infinity. The operand order lets NaN through.
  x = min(set1(89.0f), max(set1(-104.0f), x));
  const Vec n = round_even(mul(x, set1(1.44269504f)));
  // ln 2 in two parts; the first has 9 bits, so that n times it is exact without fused multiply-add too.
  Vec r = fma(n, set1(-0.693359375f), x);
  r = fma(n, set1(2.12194440e-4f), r);
  // |r| <= ln(2) / 2: the first term left out of the series, r^8 / 8!, is under 2^-27.
  Vec p = set1(1.0f / 5040.0f);
  p = fma(p, r, set1(1.0f / 720.0f));
  p = fma(p, r, set1(1.0f / 120.0f));
  p = fma(p, r, set1(1.0f / 24.0f));
  p = fma(p, r, set1(1.0f / 6.0f));
  p = fma(p, r, set1(0.5f));
  p = fma(p, mul(r, r), r);
  p = add(p, set1(1.0f));
  return times_power_of_two(p, n);
}

// 2^x for x of about 0 at most, 0 below -149; NaN for NaN. n is the nearest whole number, r what is left.
TANDEM_INLINE Vec split_power(Vec x, Vec& r) {
  x = max(set1(-160.0f), x);  // the operand order lets NaN through
  const Vec n = round_even(x);
  r = sub(x, n);
  return n;
}
// Within 2 units in the last place. The polynomial 2^r = 1 + r * (...) is off by less than 2^-28.
TANDEM_INLINE Vec exp2_below(Vec x) {
  Vec r;
  const Vec n = split_power(x, r);
  Vec p = set1(0.000153533608f);
  p = fma(p, r, set1(0.0013398876f));
  p = fma(p, r, set1(0.00961843737f));
  p = fma(p, r, set1(0.0555033247f));
  p = fma(p, r, set1(0.240226479f));
  p = fma(p, r, set1(0.693147203f));
  return scale_by_power(fma(p, r, set1(1.0f)), n);
}
// To be rounded to bf16: off by less than 2^-18.
TANDEM_INLINE Vec exp2_below_bf16(Vec x) {
  Vec r;
  const Vec n = split_power(x, r);
  Vec p = set1(0.00958285047f);
  p = fma(p, r, set1(0.0559064377f));
  p = fma(p, r, set1(0.240240987f));
  p = fma(p, r, set1(0.693124192f));
  return scale_by_power(fma(p, r, set1(1.0f)), n);
}

// silu(gate) * up = gate / (1 + e^-gate) * up.
TANDEM_INLINE Vec swiglu(Vec gate, Vec up) {
  const Vec one = set1(1.0f);
  return mul(div(gate, add(one, exp(sub(zero(), gate)))), up);
}

// The factors bounded first. The operand order lets NaN through.
TANDEM_INLINE Vec clamped_swiglu(Vec gate, Vec up, float limit) {
  return swiglu(min(set1(limit), gate), min(set1(limit), max(set1(-limit), up)));
}
TANDEM_INLINE Vec scaled_swiglu(Vec gate, Vec up, float limit, float alpha) {
  const Vec one = set1(1.0f);
  gate = min(set1(limit), gate);
  up = add(min(set1(limit), max(set1(-limit), up)), one);
  return mul(div(gate, add(one, exp(mul(gate, set1(-alpha))))), up);
}

}  // namespace tandem::TANDEM_ISA_NAMESPACE
