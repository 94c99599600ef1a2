#include "kernels/weight_quantizer.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

namespace tandem {
namespace {

constexpr uint32_t kFp4Block = scale_block_cols(PackFormat::mxfp4);
// Far below any weight, and so near to 2^24 that scales of one row stay within what pack_coded takes.
constexpr int kSmallestFp4Exponent = -40;

// The largest magnitude as bits: above those of infinity for NaN.
uint32_t largest_magnitude(const float* x, uint32_t count) {
  uint32_t largest = 0;
  for (uint32_t i = 0; i < count; ++i)
    largest = std::max(largest, std::bit_cast<uint32_t>(x[i]) & 0x7fffffffu);
  return largest;
}

// The nearest whole number, ties to even, for |x| < 2^22.
float nearest(float x) {
  constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23
  return (x + kMagic) - kMagic;
}

void quantize_int8(const float* row, uint32_t cols, std::byte* codes, std::byte* scales, float* back) {
  const float largest = std::bit_cast<float>(largest_magnitude(row, cols));
  // Below this the inverse is not finite. A row of zeros has scale 0, too.
  const float scale = largest < 0x1p-100f ? 0.0f : largest / 127.0f;
  const float inverse = scale == 0.0f ? 0.0f : 127.0f / largest;
  std::memcpy(scales, &scale, sizeof scale);
  for (uint32_t i = 0; i < cols; ++i) {
    const float code = nearest(row[i] * inverse);
    codes[i] = static_cast<std::byte>(static_cast<int8_t>(code));
    back[i] = code * scale;
  }
}

// The smaller of two numbers that are not negative, by the bits of their difference: the compiler makes a
// branch of everything that compares, and then no vectors.
int32_t least(int32_t x, int32_t y) {
  const int32_t difference = x - y;
  return y + (difference & difference >> 31);
}
float least(float x, float y) {
  return std::bit_cast<float>(least(std::bit_cast<int32_t>(x), std::bit_cast<int32_t>(y)));
}

// e2m1 of a magnitude below 2^20. Without a branch: which of its steps a weight falls into cannot be
// predicted, and loops of this become vectors.
float nearest_e2m1(float magnitude) {
  // Steps of 1/2 below 2, 1 below 4, then 2: half the power of two below it. Adding 1.5 * 2^23 steps rounds.
  const auto power = static_cast<int32_t>(std::bit_cast<uint32_t>(magnitude) & 0x7f800000u);
  constexpr int32_t kOne = 0x3f800000;
  const int32_t above = power - least(power, kOne);
  const float magic = std::bit_cast<float>(kOne + above) * (0.5f * 12582912.0f);
  return least((magnitude + magic) - magic, 6.0f);
}

float fp4_error(const float* x, uint32_t count, int exponent) {
  const float scale = std::ldexp(1.0f, exponent), inverse = std::ldexp(1.0f, -exponent);
  float squares[kFp4Block] = {};
  for (uint32_t i = 0; i < count; ++i) {
    const float magnitude = std::fabs(x[i]), lost = magnitude - nearest_e2m1(magnitude * inverse) * scale;
    squares[i] = lost * lost;
  }
  float sums[4] = {};
  for (uint32_t i = 0; i < kFp4Block; i += 4) {
    for (uint32_t j = 0; j < 4; ++j) sums[j] += squares[i + j];
  }
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

void quantize_fp4(const float* row, uint32_t cols, std::byte* codes, std::byte* scales, float* back) {
  for (uint32_t begin = 0; begin < cols; begin += kFp4Block) {
    const uint32_t count = std::min(kFp4Block, cols - begin);
    const float* x = row + begin;
    const uint32_t magnitude = largest_magnitude(x, count);
    // 6 = 1.5 * 2^2: the smallest exponent that keeps the largest within it.
    const int power = static_cast<int>(magnitude >> 23) - 127 + ((magnitude & 0x7fffffu) > 0x400000u ? 1 : 0);
    int exponent = std::max(power - 2, kSmallestFp4Exponent);
    if (exponent > kSmallestFp4Exponent &&
        fp4_error(x, count, exponent - 1) < fp4_error(x, count, exponent)) {
      --exponent;
    }
    scales[begin / kFp4Block] = static_cast<std::byte>(exponent + 127);
    const float scale = std::ldexp(1.0f, exponent), inverse = std::ldexp(1.0f, -exponent);
    uint32_t bits[kFp4Block] = {};
    float values[kFp4Block];  // of `back`, which the compiler cannot tell from the row
    for (uint32_t i = 0; i < count; ++i) {
      const float value = nearest_e2m1(std::fabs(x[i]) * inverse);
      // 0, 1/2, 1, 3/2 | 2, 3 | 4, 6
      const float low = least(value, 2.0f), high = least(value, 4.0f);
      const float code = low + high + 0.5f * (value - high);
      const uint32_t sign = std::bit_cast<uint32_t>(x[i]) >> 31;
      bits[i] = static_cast<uint32_t>(static_cast<int32_t>(code)) | sign << 3;
      values[i] = std::bit_cast<float>(std::bit_cast<uint32_t>(value * scale) | sign << 31);
    }
    std::memcpy(back + begin, values, count * sizeof(float));
    for (uint32_t i = 0; i < count; i += 2)
      codes[(begin + i) / 2] = static_cast<std::byte>(bits[i] | bits[i + 1] << 4);
  }
}

// By the kernels that quantise activations.
void quantize_e4m3(const KernelTable& table, ActivationFormat format, const float* row, uint32_t cols,
                   std::byte* codes, std::byte* scales, float* back) {
  QuantizeArgs args;
  args.in = {DType::f32, row, cols};
  args.format = format;
  args.values = codes;
  args.scales = scales;
  args.rows = 1;
  args.cols = cols;
  table.quantize_rows.run(args, 0, nullptr);
  DequantizeArgs returned;
  returned.in = {DType::f8_e4m3, codes, cols, format, scales, scale_cols(format, cols)};
  returned.out = {DType::f32, back, cols};
  returned.rows = 1;
  returned.cols = cols;
  table.dequantize_rows.run(returned, 0, nullptr);
}

}  // namespace

void QuantizationError::add(const QuantizationError& other) {
  elements += other.elements;
  squared_error += other.squared_error;
  squared += other.squared;
  largest = std::max(largest, other.largest);
}

double QuantizationError::relative_rms() const {
  return squared > 0 ? std::sqrt(squared_error / squared) : 0.0;
}

size_t quantized_code_bytes(PackFormat format, uint32_t cols) {
  return format == PackFormat::mxfp4 ? (size_t{cols} + 1) / 2 : cols;
}

size_t quantized_scale_bytes(PackFormat format, uint32_t cols) {
  if (format == PackFormat::int8) return sizeof(float);
  const size_t blocks = (size_t{cols} + scale_block_cols(format) - 1) / scale_block_cols(format);
  return format == PackFormat::fp8_block ? blocks * sizeof(float) : blocks;
}

bool quantize_weight_row(const KernelTable& table, PackFormat format, const float* row, uint32_t cols,
                         std::byte* codes, std::byte* scales, float* back) {
  if (largest_magnitude(row, cols) >= 0x7f800000u) return false;
  switch (format) {
    case PackFormat::int8:
      quantize_int8(row, cols, codes, scales, back);
      return true;
    case PackFormat::fp8_block:
      quantize_e4m3(table, ActivationFormat::fp8, row, cols, codes, scales, back);
      return true;
    case PackFormat::mxfp8:
      quantize_e4m3(table, ActivationFormat::mxfp8, row, cols, codes, scales, back);
      return true;
    default:
      quantize_fp4(row, cols, codes, scales, back);
      return true;
  }
}

QuantizationError quantization_error(const float* row, const float* back, uint32_t cols) {
  // Four sums, so that they need not wait for each other.
  double error[4] = {}, squared[4] = {};
  float largest = 0;
  for (uint32_t i = 0; i < cols; ++i) {
    const float lost = row[i] - back[i];
    error[i % 4] += static_cast<double>(lost) * static_cast<double>(lost);
    squared[i % 4] += static_cast<double>(row[i]) * static_cast<double>(row[i]);
    largest = std::max(largest, std::fabs(lost));
  }
  return {cols, (error[0] + error[1]) + (error[2] + error[3]),
          (squared[0] + squared[1]) + (squared[2] + squared[3]), static_cast<double>(largest)};
}

}  // namespace tandem
