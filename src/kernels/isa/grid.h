// The grid of deterministic sums: multiples of 2^-30, on which float64 addition is exact in any order.
#pragma once

#include "kernels/isa/isa_namespace.h"

namespace tandem::TANDEM_ISA_NAMESPACE {

// The product of two float32 is exact in float64, and scaling by a power of two is exact: one rounding.
TANDEM_INLINE double on_grid(double value) {
  return __builtin_nearbyint(value * 0x1p30) * 0x1p-30;
}

}  // namespace tandem::TANDEM_ISA_NAMESPACE
