// quantize_rows and dequantize_rows on every table, and quantize_all_rows, against a float64 reference: the
// same bits everywhere.
#include <array>

#include "kernels/row_quantizer.h"
#include "kernels/testing.h"

namespace tandem::kernel_testing {
namespace {

class QuantizeTest : public EveryTable {};

constexpr ActivationFormat kFormats[] = {ActivationFormat::fp8, ActivationFormat::mxfp8,
                                         ActivationFormat::int8};

// The value of an e4m3 code by its definition.
double e4m3(uint8_t code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  if ((code & 0x7f) == 0x7f) return kNan;
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 7 - 3);
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

// The nearest of all finite codes; of two equally near ones the even one.
uint8_t nearest_e4m3(double value) {
  uint8_t best = 0;
  double distance = std::numeric_limits<double>::infinity();
  for (uint8_t code = 0; code < 0x7f; ++code) {
    const double d = std::fabs(e4m3(code) - std::fabs(value));
    if (d < distance || (d == distance && code % 2 == 0)) {
      best = code;
      distance = d;
    }
  }
  return static_cast<uint8_t>(best | (std::signbit(value) ? 0x80 : 0));
}

struct Quantized {
  std::vector<uint8_t> values;
  std::vector<std::byte> scales;
};

// One row by the definition in kernel_args.h.
Quantized reference(ActivationFormat format, const std::vector<float>& row) {
  Quantized out;
  const auto cols = static_cast<uint32_t>(row.size());
  const auto append_scale = [&](auto scale) {
    const auto* bytes = reinterpret_cast<const std::byte*>(&scale);
    out.scales.insert(out.scales.end(), bytes, bytes + sizeof scale);
  };
  const uint32_t block = format == ActivationFormat::int8 ? cols : uint32_t{1} << log2_scale_block(format);
  for (uint32_t begin = 0; begin < cols; begin += block) {
    const uint32_t end = std::min(cols, begin + block);
    bool finite = true;
    double largest = 0;
    for (uint32_t i = begin; i < end; ++i) {
      finite = finite && std::isfinite(row[i]);
      largest = std::max(largest, std::fabs(static_cast<double>(row[i])));
    }
    if (format == ActivationFormat::int8) {
      const float range = std::max(static_cast<float>(largest), 1e-4f);
      append_scale(finite ? range / 127.0f : kNan);
      for (uint32_t i = begin; i < end; ++i) {
        const float scaled = row[i] * (127.0f / range);  // rounded once, as defined
        out.values.push_back(finite ? static_cast<uint8_t>(static_cast<int8_t>(std::nearbyint(scaled)))
                                    : uint8_t{0});
      }
      continue;
    }
    int power = -22;
    while (finite && largest > std::ldexp(448, power)) ++power;
    if (format == ActivationFormat::fp8) {
      append_scale(finite ? static_cast<float>(std::ldexp(1, power)) : kNan);
    } else {
      append_scale(finite ? static_cast<uint8_t>(power + 127) : uint8_t{255});
    }
    for (uint32_t i = begin; i < end; ++i) {
      out.values.push_back(finite ? nearest_e4m3(std::ldexp(static_cast<double>(row[i]), -power))
                                  : uint8_t{0x7f});
    }
  }
  return out;
}

// Rows one element apart from each other and all buffers at odd addresses: nothing may depend on alignment.
Quantized quantize(const KernelTable& table, ActivationFormat format, DType dtype,
                   const std::vector<std::vector<float>>& rows, int threads = 1) {
  const auto count = static_cast<uint32_t>(rows.size()), cols = static_cast<uint32_t>(rows[0].size());
  Tensor in(dtype, count * (cols + 1) + 1, kNan);
  for (uint32_t r = 0; r < count; ++r) {
    for (uint32_t c = 0; c < cols; ++c) in.set(1 + r * (cols + 1) + c, rows[r][c]);
  }
  const size_t scale_bytes = count * scale_row_bytes(format, cols);
  std::vector<uint8_t> values(count * cols + 2, 0xcd);
  std::vector<float> scale_memory(scale_bytes / sizeof(float) + 2, -7.0f);
  QuantizeArgs args;
  args.in = rows_from(in.view(1), 1);
  args.in.row_stride = cols + 1;
  args.format = format;
  args.values = values.data() + 1;
  args.scales = scale_memory.data();
  args.rows = count;
  args.cols = cols;
  run(table, table.quantize_rows, args, threads);
  // And without a table: the same bits.
  std::vector<uint8_t> again(values.size(), 0xcd);
  std::vector<float> scales_again(scale_memory.size(), -7.0f);
  args.values = again.data() + 1;
  args.scales = scales_again.data();
  quantize_all_rows(args);
  EXPECT_EQ(again, values);
  EXPECT_EQ(std::memcmp(scales_again.data(), scale_memory.data(), scale_bytes), 0);
  EXPECT_EQ(values.front(), 0xcd);
  EXPECT_EQ(values.back(), 0xcd);
  Quantized out;
  out.values.assign(values.begin() + 1, values.end() - 1);
  const auto* scales = reinterpret_cast<const std::byte*>(scale_memory.data());
  out.scales.assign(scales, scales + scale_bytes);
  const float untouched = -7.0f;
  EXPECT_EQ(std::memcmp(scales + scale_bytes, &untouched, scale_bytes % sizeof(float) == 0 ? 4 : 0), 0);
  return out;
}

std::vector<float> dequantize(const KernelTable& table, ActivationFormat format, DType out_dtype,
                              const Quantized& in, uint32_t rows, uint32_t cols) {
  std::vector<uint8_t> values(in.values.size() + 1);
  std::memcpy(values.data() + 1, in.values.data(), in.values.size());
  Tensor out(out_dtype, rows * (cols + 1), 3.0f);
  DequantizeArgs args;
  args.in = {value_dtype(format, DType::bf16), values.data() + 1, cols, format, in.scales.data(),
             scale_cols(format, cols)};
  args.out = out.out(cols + 1);
  args.rows = rows;
  args.cols = cols;
  run(table, table.dequantize_rows, args);
  std::vector<float> result;
  for (uint32_t r = 0; r < rows; ++r) {
    for (uint32_t c = 0; c < cols; ++c) result.push_back(out.get(r * (cols + 1) + c));
    EXPECT_EQ(out.get(r * (cols + 1) + cols), 3.0f);
  }
  return result;
}

// As the kernel sees them: bf16 rows hold bf16 values.
std::vector<float> rounded(std::vector<float> row, DType dtype) {
  if (dtype == DType::bf16) {
    for (float& value : row) value = to_float(to_bf16(value));
  }
  return row;
}

void expect_reference(const KernelTable& table, const std::vector<std::vector<float>>& rows,
                      const std::string& what, int threads = 1) {
  for (const ActivationFormat format : kFormats) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const Quantized got = quantize(table, format, dtype, rows, threads);
      Quantized want;
      for (const std::vector<float>& row : rows) {
        const Quantized one = reference(format, rounded(row, dtype));
        want.values.insert(want.values.end(), one.values.begin(), one.values.end());
        want.scales.insert(want.scales.end(), one.scales.begin(), one.scales.end());
      }
      ASSERT_EQ(got.values, want.values) << activation_format_name(format) << " " << what;
      ASSERT_EQ(got.scales, want.scales) << activation_format_name(format) << " " << what;
    }
  }
}

TEST_P(QuantizeTest, RowsOfAnyWidthAreTheReferences) {
  for (const uint32_t cols : {1u, 15u, 16u, 17u, 31u, 32u, 33u, 127u, 128u, 129u, 200u, 1025u}) {
    std::vector<std::vector<float>> rows;
    for (uint32_t r = 0; r < 5; ++r) {
      const Tensor random =
          Tensor::random(DType::f32, cols, 7 * r + cols, std::ldexp(1.0f, 4 * static_cast<int>(r) - 9));
      std::vector<float> row;
      for (uint32_t c = 0; c < cols; ++c) row.push_back(random.get(c));
      if (r == 3) row[cols / 2] *= 1000.0f;  // an outlier takes the range of its block
      rows.push_back(std::move(row));
    }
    expect_reference(table(), rows, std::to_string(cols) + " columns", 2);
  }
}

// 448 fixes the scale to 1: every code, every middle between two codes and its neighbours.
TEST_P(QuantizeTest, EveryRoundingToE4m3) {
  std::vector<std::vector<float>> rows;
  for (uint8_t code = 0; code < 0x7e; ++code) {
    const auto below = static_cast<float>(e4m3(code)), above = static_cast<float>(e4m3(code + 1));
    const float middle = (below + above) / 2;
    std::vector<float> row = {448.0f, below, middle, std::nextafterf(middle, 0.0f),
                              std::nextafterf(middle, 1000.0f)};
    const size_t count = row.size();
    for (size_t i = 1; i < count; ++i) row.push_back(-row[i]);
    rows.push_back(std::move(row));
  }
  expect_reference(table(), rows, "codes and middles");
}

TEST_P(QuantizeTest, ZerosDenormalsAndTheLargestValues) {
  const float largest_bf16 = 0x1.fep127f;
  expect_reference(table(),
                   {{0.0f, -0.0f, 0.0f},
                    {1e-40f, -1e-45f, 0.0f},
                    {1.1754944e-38f, -1e-30f, 1e-20f},
                    {1e-4f, 9e-5f, -1e-6f},
                    {largest_bf16, -largest_bf16, 1.0f},
                    {448.0f, -448.0f, 449.0f},
                    {0x1.cp-14f, 0x1.c2p-14f, -0x1.cp-14f}},
                   "special rows");
  const Quantized zero = quantize(table(), ActivationFormat::mxfp8, DType::bf16, {{0.0f, 0.0f}});
  EXPECT_EQ(zero.scales[0], std::byte{127 - 22});
  EXPECT_EQ(zero.values, (std::vector<uint8_t>{0, 0}));
}

// A value that is not finite takes its block with it (int8: its row), and nothing else.
TEST_P(QuantizeTest, NotFiniteStaysNotFiniteAndInItsBlock) {
  constexpr uint32_t kCols = 300;
  for (const float bad : {kInfinity, -kInfinity, kNan, -kNan}) {
    const Tensor random = Tensor::random(DType::f32, 3 * kCols, 5);
    std::vector<std::vector<float>> rows(3, std::vector<float>(kCols));
    for (uint32_t i = 0; i < 3 * kCols; ++i) rows[i / kCols][i % kCols] = random.get(i);
    rows[1][290] = bad;
    expect_reference(table(), rows, "not finite");
    for (const ActivationFormat format : kFormats) {
      const Quantized quantized = quantize(table(), format, DType::bf16, rows);
      const std::vector<float> back = dequantize(table(), format, DType::bf16, quantized, 3, kCols);
      const uint32_t first =
          format == ActivationFormat::int8 ? 0 : 290u >> log2_scale_block(format) << log2_scale_block(format);
      const uint32_t last = format == ActivationFormat::mxfp8 ? first + 32 : kCols;
      for (uint32_t i = 0; i < 3 * kCols; ++i) {
        const bool in_block = i / kCols == 1 && i % kCols >= first && i % kCols < std::min(last, kCols);
        ASSERT_EQ(std::isnan(back[i]), in_block) << activation_format_name(format) << " " << i;
      }
    }
  }
}

// Value times scale, exact in bf16 for e4m3 and powers of two; int8 rounded once to float32 and once more.
TEST_P(QuantizeTest, EveryCodeComesBackExactly) {
  for (const ActivationFormat format : kFormats) {
    for (const int power : {-127, -126, -22, 0, 3, 100}) {
      if (power == -127 && format != ActivationFormat::mxfp8) continue;
      Quantized in;
      for (int code = 0; code < 256; ++code) in.values.push_back(static_cast<uint8_t>(code));
      const auto scale = static_cast<float>(format == ActivationFormat::int8 ? std::ldexp(1.0, power) * 0.7
                                                                             : std::ldexp(1.0, power));
      const uint32_t scales = scale_cols(format, 256);
      if (format == ActivationFormat::mxfp8) {
        in.scales.assign(scales, static_cast<std::byte>(power + 127));
      } else {
        const auto* bytes = reinterpret_cast<const std::byte*>(&scale);
        for (uint32_t i = 0; i < scales; ++i) in.scales.insert(in.scales.end(), bytes, bytes + sizeof scale);
      }
      for (const DType dtype : {DType::f32, DType::bf16}) {
        const std::vector<float> got = dequantize(table(), format, dtype, in, 1, 256);
        for (int code = 0; code < 256; ++code) {
          const auto byte = static_cast<uint8_t>(code);
          if (format == ActivationFormat::int8) {
            const float want = rounded({static_cast<float>(static_cast<int8_t>(byte)) * scale}, dtype)[0];
            ASSERT_EQ(got[byte], want) << code << " 2^" << power;
          } else if ((code & 0x7f) == 0x7f) {
            ASSERT_TRUE(std::isnan(got[byte])) << code;
          } else {
            const double exact = e4m3(byte) * std::ldexp(1.0, power);
            const double want =
                power < -120 ? rounded({static_cast<float>(exact)}, dtype)[0] : exact;  // bf16 ends at 2^-133
            ASSERT_EQ(static_cast<double>(got[byte]), want) << code << " 2^" << power;
            ASSERT_EQ(std::signbit(got[byte]), code >= 128);
          }
        }
      }
    }
  }
}

TEST_P(QuantizeTest, NanScaleMakesNan) {
  Quantized in;
  in.values.assign(64, 0x38);
  in.scales = {std::byte{255}, std::byte{127}};
  const std::vector<float> got = dequantize(table(), ActivationFormat::mxfp8, DType::bf16, in, 1, 64);
  EXPECT_TRUE(std::isnan(got[0]) && std::isnan(got[31]));
  EXPECT_EQ(got[32], 1.0f);
}

// A row alone, first of two and in the middle of many has the same bits.
TEST_P(QuantizeTest, RowsDoNotAffectEachOther) {
  constexpr uint32_t kCols = 1101, kMost = 70;
  std::vector<std::vector<float>> rows;
  for (uint32_t r = 0; r < kMost; ++r) {
    const Tensor random = Tensor::random(DType::f32, kCols, r);
    std::vector<float>& row = rows.emplace_back();
    for (uint32_t c = 0; c < kCols; ++c) row.push_back(random.get(c));
  }
  for (const ActivationFormat format : kFormats) {
    const Quantized all = quantize(table(), format, DType::bf16, rows, 2);
    const size_t scale_bytes = scale_row_bytes(format, kCols);
    for (const uint32_t r : {0u, 13u, 69u}) {
      const Quantized alone = quantize(table(), format, DType::bf16, {rows[r]});
      EXPECT_EQ(std::memcmp(alone.values.data(), all.values.data() + r * kCols, kCols), 0);
      EXPECT_EQ(std::memcmp(alone.scales.data(), all.scales.data() + r * scale_bytes, scale_bytes), 0);
    }
  }
}

TANDEM_EVERY_TABLE(QuantizeTest);

TEST(ActivationFormat, ScalesOfARow) {
  EXPECT_EQ(scale_cols(ActivationFormat::plain, 7168), 0u);
  EXPECT_EQ(scale_cols(ActivationFormat::fp8, 7168), 56u);
  EXPECT_EQ(scale_cols(ActivationFormat::fp8, 129), 2u);
  EXPECT_EQ(scale_cols(ActivationFormat::fp8, 1), 1u);
  EXPECT_EQ(scale_cols(ActivationFormat::mxfp8, 7168), 224u);
  EXPECT_EQ(scale_cols(ActivationFormat::mxfp8, 33), 2u);
  EXPECT_EQ(scale_cols(ActivationFormat::int8, 7168), 1u);
  EXPECT_EQ(scale_row_bytes(ActivationFormat::fp8, 256), 8u);
  EXPECT_EQ(scale_row_bytes(ActivationFormat::mxfp8, 256), 8u);
  for (const ActivationFormat format : kFormats) {
    EXPECT_EQ(activation_format_from_name(activation_format_name(format)), format);
  }
  EXPECT_FALSE(activation_format_from_name("fp4").has_value());
}

TEST(ActivationFormat, RowsAndScalesMoveTogether) {
  const std::array<uint8_t, 6> values = {1, 2, 3, 4, 5, 6};
  const std::array<float, 3> scales = {0.5f, 0.25f, 0.125f};
  const ActivationView view{DType::i8, values.data(), 2, ActivationFormat::int8, scales.data(), 1};
  const ActivationView second = rows_from(view, 1);
  std::array<std::byte, 4> moved{};
  std::array<float, 2> moved_scales{};
  const std::array<uint32_t, 2> order = {1, 0};  // rows 2 and 1
  gather_rows(second, order, 2, 2, moved.data(), reinterpret_cast<std::byte*>(moved_scales.data()));
  EXPECT_EQ(moved, (std::array<std::byte, 4>{std::byte{5}, std::byte{6}, std::byte{3}, std::byte{4}}));
  EXPECT_EQ(moved_scales, (std::array<float, 2>{0.125f, 0.25f}));
}

}  // namespace
}  // namespace tandem::kernel_testing
