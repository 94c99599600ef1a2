// For the tests of int8 weights: random codes and scales, packed; activations quantised by the table's own
// kernel.
#pragma once

#include <random>

#include "kernels/testing.h"

namespace tandem::kernel_testing {

struct Int8Matrix {
  uint32_t rows = 0, cols = 0;
  std::vector<int8_t> codes;  // [rows, cols]
  std::vector<float> scales;  // [rows]

  // Every code from -127 to 127; the extremes are frequent, so that sums are long.
  static Int8Matrix random(uint32_t rows, uint32_t cols, uint32_t seed) {
    Int8Matrix matrix{rows, cols, std::vector<int8_t>(size_t{rows} * cols), std::vector<float>(rows)};
    std::mt19937 generator(seed);
    for (int8_t& code : matrix.codes) {
      const int value = static_cast<int>(generator() % 300) - 150;
      code = static_cast<int8_t>(std::max(-127, std::min(127, value)));
    }
    for (float& scale : matrix.scales)
      scale = std::ldexp(1.0f + static_cast<float>(generator() % 97) / 97.0f, -9);
    return matrix;
  }
  TestWeight pack(const KernelTable& table, PackArrangement arrangement, uint32_t begin = 0,
                  uint32_t end = UINT32_MAX) const {
    end = std::min(end, cols);
    TestWeight result;
    result.bytes.resize(table.packed_bytes(PackFormat::int8, arrangement, rows, end - begin));
    const CodedRows source = {reinterpret_cast<const std::byte*>(codes.data()) + begin, cols, scales.data(),
                              1};
    EXPECT_EQ(table.pack_coded(PackFormat::int8, arrangement, rows, end - begin, 0, 0, rows, source,
                               result.bytes.data()),
              PackFault::none);
    result.weight = {PackFormat::int8,    arrangement,         rows, end - begin,
                     result.bytes.data(), result.bytes.size(), 0};
    return result;
  }
};

// Rows of int8 activations with their scales; they stand apart with other bytes between them.
struct Int8Activations {
  uint32_t rows = 0, cols = 0, block_cols = 0;
  std::vector<int8_t> values;  // [rows, cols]
  std::vector<float> scales;   // [rows, blocks]

  uint32_t block() const { return block_cols == 0 ? cols : block_cols; }
  uint32_t blocks() const { return (cols + block() - 1) / block(); }
  ActivationView view() const {
    return {DType::i8, values.data(), cols, ActivationFormat::int8, scales.data(), blocks()};
  }
  float scale(uint32_t row, uint32_t col) const { return scales[size_t{row} * blocks() + col / block()]; }

  static Int8Activations quantized(const KernelTable& table, const Tensor& in, uint32_t rows, uint32_t cols,
                                   uint32_t block_cols) {
    Int8Activations result{rows, cols, block_cols, std::vector<int8_t>(size_t{rows} * cols), {}};
    result.scales.resize(size_t{rows} * result.blocks());
    QuantizeArgs args;
    args.in = in.view(cols);
    args.format = ActivationFormat::int8;
    args.values = result.values.data();
    args.scales = result.scales.data();
    args.rows = rows;
    args.cols = cols;
    args.block_cols = block_cols;
    run(table, table.quantize_rows, args);
    return result;
  }
};

}  // namespace tandem::kernel_testing
