// Writing rows of vectors as float32 or bfloat16.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/isa/isa_namespace.h"
#include "kernels/kernel_args.h"

namespace tandem::TANDEM_ISA_NAMESPACE {

// The first `lanes` (1..16) lanes of v to element `offset` of out.
TANDEM_INLINE void write_lanes(DType dtype, void* out, size_t offset, Vec v, uint32_t lanes) {
  if (dtype == DType::f32) {
    float* p = static_cast<float*>(out) + offset;
    if (lanes == 16) {
      store(p, v);
    } else {
      store_partial(p, v, lanes);
    }
  } else {
    uint16_t* p = static_cast<uint16_t*>(out) + offset;
    if (lanes == 16) {
      store_bf16(p, v);
    } else {
      store_bf16_partial(p, v, lanes);
    }
  }
}

TANDEM_INLINE Vec load_lanes(const float* p, uint32_t lanes) {
  return lanes == 16 ? load(p) : load_partial(p, lanes);
}

// Each lane rounded to bfloat16, as a float32 again.
TANDEM_INLINE Vec rounded_to_bf16(Vec v) {
  alignas(64) uint16_t lanes[16];
  store_bf16(lanes, v);
  return load_bf16(lanes);
}

// Lanes of the vector that starts at element i of n.
TANDEM_INLINE uint32_t lanes_at(uint32_t i, uint32_t n) {
  return n - i < 16 ? n - i : 16;
}

}  // namespace tandem::TANDEM_ISA_NAMESPACE
