// The tile of coded_product.h for codes that were decoded into lines of bf16 pairs before.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/isa/isa_namespace.h"
#include "kernels/isa/product.h"
#include "kernels/packed_layout.h"

namespace tandem::TANDEM_ISA_NAMESPACE {

// A stretch of a group, decoded.
struct DecodedArgs {
  const std::byte* line = nullptr;  // [step][panel] lines of bf16 pairs, the tile's first panel
  size_t line_stride = 0;           // bytes between steps
  // Steps of the stretch; each run of them up to a block's end starts by multiplying the sums with a ratio.
  uint32_t steps = 0, first_run = 0, run = 0;
  bool odd_step = false;          // one more step with a single column; it may open a run of its own
  const float* ratios = nullptr;  // [run][panel][16], the tile's first panel
  size_t ratio_stride = 0;        // floats between runs
  const float* scales = nullptr;  // [panel][16]: what the sums are multiplied with at the end, or null
  bool resume = false;            // accumulators start from `sums`, else from zero
  float* sums = nullptr;          // [rows][sums_stride]
  size_t sums_stride = 0;         // floats
  Ahead ahead;
  TANDEM_INLINE void skip_panels(uint32_t count) {
    line += count * kLineBytes;
    ahead.at += count * ahead.gap;
    ratios += count * kPanelRows;
    if (scales != nullptr) scales += count * kPanelRows;
    sums += count * kPanelRows;
  }
};

struct DecodedTile {
  using Activation = uint16_t;
  using Args = DecodedArgs;
  static constexpr int kAccumulators = kBf16Accumulators;

  template <int Rows, int Panels>
  static void run(const Args& args, const uint16_t* const* rows, size_t column) {
    Vec sums[Rows][Panels];
    const uint16_t* x[Rows];
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) {
      x[r] = rows[r] + column;
#pragma GCC unroll 4
      for (int p = 0; p < Panels; ++p)
        sums[r][p] = args.resume ? load(args.sums + r * args.sums_stride + p * kPanelRows) : zero();
    }
    const std::byte* line = args.line;
    const float* ratios = args.ratios;
    Ahead ahead = args.ahead;
    const uint32_t all = args.steps + (args.odd_step ? 1 : 0);
    for (uint32_t step = 0, stop = args.first_run; step < all; stop += args.run) {
#pragma GCC unroll 4
      for (int p = 0; p < Panels; ++p) {
        const Vec ratio = load(ratios + p * kPanelRows);
#pragma GCC unroll 16
        for (int r = 0; r < Rows; ++r) sums[r][p] = mul(sums[r][p], ratio);
      }
      ratios += args.ratio_stride;
      for (const uint32_t end = stop < args.steps ? stop : args.steps; step < end;
           ++step, line += args.line_stride, ahead.at += ahead.step) {
        Pairs w[Panels];
#pragma GCC unroll 4
        for (int p = 0; p < Panels; ++p) {
          w[p] = load_pairs(line + p * kLineBytes);
          ahead.request(p);
        }
#pragma GCC unroll 16
        for (int r = 0; r < Rows; ++r) {
          const auto a = Bf16Product::activation(x[r] + size_t{step} * 2);
#pragma GCC unroll 4
          for (int p = 0; p < Panels; ++p) sums[r][p] = dot_pairs(sums[r][p], w[p], a);
        }
      }
      if (step < stop && step < all) {  // the single column
#pragma GCC unroll 16
        for (int r = 0; r < Rows; ++r) {
          const auto a = Bf16Product::last_activation(x[r] + size_t{step} * 2);
#pragma GCC unroll 4
          for (int p = 0; p < Panels; ++p)
            sums[r][p] = dot_pairs(sums[r][p], load_pairs(line + p * kLineBytes), a);
        }
        break;
      }
    }
#pragma GCC unroll 4
    for (int p = 0; p < Panels; ++p) {
      const Vec scale = args.scales != nullptr ? load(args.scales + p * kPanelRows) : set1(1.0f);
#pragma GCC unroll 16
      for (int r = 0; r < Rows; ++r) {
        const Vec sum = args.scales != nullptr ? mul(sums[r][p], scale) : sums[r][p];
        store(args.sums + r * args.sums_stride + p * kPanelRows, sum);
      }
    }
  }
};

}  // namespace tandem::TANDEM_ISA_NAMESPACE
