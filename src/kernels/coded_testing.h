// For the tests of coded weights: random codes and scales as a file has them, packed, and what they stand
// for.
#pragma once

#include <algorithm>
#include <random>

#include "kernels/testing.h"

namespace tandem::kernel_testing {

// Written anew, to hold the kernels' tables against: e4m3 and e2m1 by their definition.
inline float e4m3_value(uint32_t code) {
  const int exponent = static_cast<int>(code >> 3 & 15), mantissa = static_cast<int>(code & 7);
  if (exponent == 15 && mantissa == 7) return kNan;
  const float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                                        : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}
inline float e2m1_value(uint32_t code) {
  constexpr float kValues[] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
  return (code & 8) != 0 ? -kValues[code & 7] : kValues[code & 7];
}

enum class Scales : uint8_t { powers_of_two, any };

// A stored matrix: codes of one byte a column, and a scale for each row and block.
struct Coded {
  PackFormat format = PackFormat::fp8_block;
  uint32_t rows = 0, cols = 0;
  std::vector<uint8_t> codes;  // [rows, cols]
  std::vector<float> scales;   // [rows, blocks]

  uint32_t block() const { return scale_block_cols(format); }
  uint32_t blocks() const { return (cols + block() - 1) / block(); }
  float value(uint32_t code) const {
    return format == PackFormat::mxfp4 ? e2m1_value(code) : e4m3_value(code);
  }
  double weight(uint32_t row, uint32_t col) const {
    return static_cast<double>(value(codes[size_t{row} * cols + col])) *
           static_cast<double>(scales[size_t{row} * blocks() + col / block()]);
  }
  // The weights rounded to `dtype`, the columns [begin, end).
  Tensor dequantized(DType dtype, uint32_t begin, uint32_t end) const {
    Tensor result(dtype, size_t{rows} * (end - begin));
    for (uint32_t r = 0; r < rows; ++r) {
      for (uint32_t c = begin; c < end; ++c)
        result.set(size_t{r} * (end - begin) + c - begin, static_cast<float>(weight(r, c)));
    }
    return result;
  }

  // Scales within 2^-8 .. 2^7; every code occurs but NaN.
  static Coded random(PackFormat format, uint32_t rows, uint32_t cols, uint32_t seed, Scales kind) {
    Coded coded{format, rows, cols, std::vector<uint8_t>(size_t{rows} * cols), {}};
    coded.scales.resize(size_t{rows} * coded.blocks());
    std::mt19937 generator(seed);
    for (uint8_t& code : coded.codes) {
      do {
        code = static_cast<uint8_t>(generator() & (format == PackFormat::mxfp4 ? 15 : 255));
      } while (std::isnan(coded.value(code)));
    }
    std::uniform_real_distribution<float> mantissa(1.0f, 2.0f);
    for (float& scale : coded.scales) {
      scale = std::ldexp(kind == Scales::any ? mantissa(generator) : 1.0f,
                         static_cast<int>(generator() % 16) - 8);
    }
    return coded;
  }
};

// The columns [begin, end) as a file has them.
struct FileRows {
  std::vector<std::byte> codes;
  std::vector<float> f32_scales;
  std::vector<uint8_t> e8m0_scales;
  CodedRows rows;

  FileRows(const Coded& coded, uint32_t begin, uint32_t end) {
    const bool fp4 = coded.format == PackFormat::mxfp4;
    const uint32_t width = end - begin;
    rows.code_stride = fp4 ? (width + 1) / 2 : width;
    codes.resize(coded.rows * rows.code_stride);
    const uint32_t first = begin / coded.block(), last = (end - 1) / coded.block();
    rows.scale_stride = last - first + 1;
    for (uint32_t r = 0; r < coded.rows; ++r) {
      for (uint32_t c = 0; c < width; ++c) {
        const uint8_t code = coded.codes[size_t{r} * coded.cols + begin + c];
        codes[r * rows.code_stride + (fp4 ? c / 2 : c)] |=
            static_cast<std::byte>(fp4 && c % 2 != 0 ? code << 4 : code);
      }
      for (uint32_t b = first; b <= last; ++b) {
        const float scale = coded.scales[size_t{r} * coded.blocks() + b];
        f32_scales.push_back(scale);
        e8m0_scales.push_back(std::isnan(scale) ? uint8_t{255}
                                                : static_cast<uint8_t>(std::ilogb(scale) + 127));
      }
      // The high half of the last byte of an odd row belongs to nobody: it must not be read as a column.
      if (fp4 && width % 2 != 0) codes[(r + 1) * rows.code_stride - 1] |= std::byte{0x70};
    }
    rows.codes = codes.data();
    rows.scales = coded.format == PackFormat::fp8_block ? static_cast<const void*>(f32_scales.data())
                                                        : e8m0_scales.data();
  }
};

inline TestWeight pack_coded(const KernelTable& table, const Coded& coded, PackArrangement arrangement,
                             uint32_t begin = 0, uint32_t end = UINT32_MAX) {
  end = std::min(end, coded.cols);
  const FileRows file(coded, begin, end);
  TestWeight result;
  const uint32_t phase = begin % coded.block();
  result.bytes.resize(table.packed_bytes(coded.format, arrangement, coded.rows, phase + end - begin));
  EXPECT_EQ(table.pack_coded(coded.format, arrangement, coded.rows, end - begin, phase, 0, coded.rows,
                             file.rows, result.bytes.data()),
            PackFault::none);
  result.weight = {coded.format,        arrangement,         coded.rows, end - begin,
                   result.bytes.data(), result.bytes.size(), phase};
  return result;
}

}  // namespace tandem::kernel_testing
