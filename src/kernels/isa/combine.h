// combine: the weighted contributions of a row's experts, added up plainly or on a grid (SumMode).
#pragma once

#include <cassert>
#include <cstddef>
#include <cstdint>

#include "kernels/isa/grid.h"
#include "kernels/isa/isa_namespace.h"
#include "kernels/isa/output.h"
#include "kernels/kernel_args.h"

namespace tandem::TANDEM_ISA_NAMESPACE {

// Columns of one task: even a single row of a large model gives every thread some.
inline constexpr uint32_t kCombineColumns = 1024;

TANDEM_INLINE uint32_t combine_pieces(const CombineArgs& args) {
  return (args.hidden + kCombineColumns - 1) / kCombineColumns;
}

inline size_t combine_tasks(const CombineArgs& args) {
  return size_t{args.rows} * combine_pieces(args);
}

// Whether the row's shared part is added here.
TANDEM_INLINE bool adds_shared(const CombineArgs& args, size_t row) {
  return args.shared != nullptr && (args.shared_rows == nullptr || args.shared_rows[row] != 0);
}

TANDEM_INLINE void combine_plain(const CombineArgs& args, size_t row, uint32_t begin, uint32_t end) {
  const float* slots = args.slots + row * args.top_k * args.hidden;
  const float* weights = args.weights + row * args.top_k;
  const bool with_shared = adds_shared(args, row);
  for (uint32_t i = begin; i < end; i += 16) {
    const uint32_t lanes = lanes_at(i, end);
    Vec sum = zero();
    for (uint32_t k = 0; k < args.top_k; ++k) {
      if (weights[k] == 0.0f) continue;  // not held here: the slot was never written
      sum = fma(set1(weights[k]), load_lanes(slots + size_t{k} * args.hidden + i, lanes), sum);
    }
    if (with_shared) {
      Vec shared = load_lanes(args.shared + row * args.hidden + i, lanes);
      if (args.out_dtype == DType::bf16) {  // as if the two parts had met on attention: see ResidualAddArgs
        sum = rounded_to_bf16(sum);
        shared = rounded_to_bf16(shared);
      }
      sum = add(sum, shared);
    }
    if (args.out_dtype == DType::f64) {
      alignas(64) float sums[16];
      store(sums, sum);
      double* out = static_cast<double*>(args.out) + row * args.hidden + i;
      for (uint32_t j = 0; j < lanes; ++j) out[j] = static_cast<double>(sums[j]);
    } else {
      write_lanes(args.out_dtype, args.out, row * args.hidden + i, sum, lanes);
    }
  }
}

TANDEM_INLINE void combine_deterministic(const CombineArgs& args, size_t row, uint32_t begin, uint32_t end) {
  const double* slots = args.exact_slots + row * args.top_k * args.hidden;
  const float* weights = args.weights + row * args.top_k;
  double* out = static_cast<double*>(args.out) + row * args.hidden;
  for (uint32_t i = begin; i < end; ++i) out[i] = 0.0;
  for (uint32_t k = 0; k < args.top_k; ++k) {
    if (weights[k] == 0.0f) continue;
    const double* slot = slots + size_t{k} * args.hidden;
    for (uint32_t i = begin; i < end; ++i) out[i] += slot[i];
  }
  if (adds_shared(args, row)) {
    const float* shared = args.shared + row * args.hidden;
    for (uint32_t i = begin; i < end; ++i) out[i] += on_grid(static_cast<double>(shared[i]));
  }
}

inline void combine_run(const CombineArgs& args, size_t task, std::byte*) {
  const uint32_t pieces = combine_pieces(args);
  const size_t row = task / pieces;
  const uint32_t begin = static_cast<uint32_t>(task % pieces) * kCombineColumns;
  const uint32_t end = args.hidden - begin < kCombineColumns ? args.hidden : begin + kCombineColumns;
  if (args.mode == SumMode::deterministic) {
    assert(args.out_dtype == DType::f64);
    combine_deterministic(args, row, begin, end);
  } else {
    combine_plain(args, row, begin, end);
  }
}

}  // namespace tandem::TANDEM_ISA_NAMESPACE
