// Coded weights (fp8_block, mxfp4, mxfp8) on every table: against float64, bit for bit against the bf16
// kernels on the dequantised weight where scales are powers of two, and with bits that depend on the weight
// and the row alone.
#include "kernels/coded_testing.h"

#include <numeric>

namespace tandem::kernel_testing {
namespace {

class CodedTest : public EveryTable {};

constexpr PackFormat kFormats[] = {PackFormat::fp8_block, PackFormat::mxfp4, PackFormat::mxfp8};

// out[rows, weight.rows] of bf16 rows `in` [rows, cols], which stand apart with NaN between them.
Tensor product(const KernelTable& table, const PackedWeight& weight, const Tensor& in, uint32_t rows,
               int threads = 1) {
  const size_t stride = weight.cols + 3;
  Tensor apart(DType::bf16, (rows - 1) * stride + weight.cols, kNan);
  for (uint32_t r = 0; r < rows; ++r) {
    for (uint32_t c = 0; c < weight.cols; ++c) apart.set(r * stride + c, in.get(size_t{r} * weight.cols + c));
  }
  Tensor out(DType::f32, size_t{rows} * weight.rows, 77.0f);
  MatmulArgs args;
  args.weights = {&weight, 1};
  args.in = apart.view(stride);
  args.out = out.out(weight.rows);
  args.rows = rows;
  run(table, table.matmul, args, threads);
  return out;
}

struct Shape {
  uint32_t rows, cols;
};
// Whole and broken lines, blocks, panels and groups; one column; an odd last column that opens a block.
constexpr Shape kShapes[] = {{1, 1},   {16, 4},   {17, 37},   {64, 128}, {33, 129},
                             {50, 33}, {80, 777}, {96, 1024}, {7, 513},  {130, 386}};

TEST_P(CodedTest, AgreesWithFloat64) {
  for (const PackFormat format : kFormats) {
    for (const Scales kind : {Scales::powers_of_two, Scales::any}) {
      if (format != PackFormat::fp8_block && kind == Scales::any) continue;
      for (const Shape shape : kShapes) {
        const Coded coded = Coded::random(format, shape.rows, shape.cols, shape.cols, kind);
        const TestWeight weight = pack_coded(table(), coded, PackArrangement::plain);
        for (const uint32_t rows : {1u, 2u, 7u, 13u}) {
          SCOPED_TRACE(::testing::Message() << pack_format_name(format) << " N " << shape.rows << " K "
                                            << shape.cols << " M " << rows);
          const Tensor in = Tensor::random(DType::bf16, size_t{rows} * shape.cols, 2);
          const Tensor out = product(table(), weight.weight, in, rows);
          for (uint32_t r = 0; r < rows; ++r) {
            for (uint32_t n = 0; n < shape.rows; ++n) {
              double sum = 0, magnitude = 0;
              for (uint32_t c = 0; c < shape.cols; ++c) {
                const double each =
                    coded.weight(n, c) * static_cast<double>(in.get(size_t{r} * shape.cols + c));
                sum += each;
                magnitude += std::fabs(each);
              }
              // As coded_product.h states it, and the rounding of the result's denormals.
              const double bound = (shape.cols + 3 * coded.blocks() + 2) * 0x1p-24 * magnitude + 1.2e-38;
              ASSERT_NEAR(out.get(size_t{r} * shape.rows + n), sum, bound) << "row " << r << " output " << n;
            }
          }
        }
      }
    }
  }
}

TEST_P(CodedTest, PowersOfTwoGiveTheBitsOfTheDequantizedWeight) {
  for (const PackFormat format : kFormats) {
    for (const Shape shape : kShapes) {
      const Coded coded = Coded::random(format, shape.rows, shape.cols, 7, Scales::powers_of_two);
      const TestWeight weight = pack_coded(table(), coded, PackArrangement::plain);
      const TestWeight wide = pack(table(), PackFormat::bf16, PackArrangement::plain, shape.rows, shape.cols,
                                   coded.dequantized(DType::bf16, 0, shape.cols));
      for (const uint32_t rows : {1u, 2u, 5u, 6u, 7u, 16u, 257u}) {
        const Tensor in = Tensor::random(DType::bf16, size_t{rows} * shape.cols, 3);
        EXPECT_TRUE(same_bits(product(table(), weight.weight, in, rows), 0,
                              product(table(), wide.weight, in, rows), 0, size_t{rows} * shape.rows))
            << pack_format_name(format) << " N " << shape.rows << " K " << shape.cols << " M " << rows;
      }
    }
  }
}

// One column and one row a code: what each stands for, signs of zero and denormals included.
TEST_P(CodedTest, EveryCodeHasItsValue) {
  for (const PackFormat format : kFormats) {
    const uint32_t count = format == PackFormat::mxfp4 ? 16 : 256;
    for (const uint32_t column : {0u, 1u, 2u, 3u, 4u, 5u, 6u, 7u}) {
      Coded coded{format, count, 8, std::vector<uint8_t>(size_t{count} * 8), std::vector<float>(count, 1.0f)};
      for (uint32_t code = 0; code < count; ++code) {
        const bool nan = std::isnan(coded.value(code));
        coded.codes[size_t{code} * 8 + column] = static_cast<uint8_t>(nan ? 0 : code);
      }
      const TestWeight weight = pack_coded(table(), coded, PackArrangement::plain);
      Tensor in(DType::bf16, 8);
      in.set(column, 1.0f);
      const Tensor out = product(table(), weight.weight, in, 1);
      for (uint32_t code = 0; code < count; ++code) {
        if (std::isnan(coded.value(code))) continue;
        ASSERT_EQ(out.get(code), coded.value(code))
            << pack_format_name(format) << " " << code << " in column " << column;
      }
    }
  }
}

TEST_P(CodedTest, BitsDoNotDependOnRowsOrThreads) {
  for (const PackFormat format : kFormats) {
    for (const Shape shape : {Shape{192, 1101}, Shape{17, 200}}) {
      const Coded coded =
          Coded::random(format, shape.rows, shape.cols, 3,
                        format == PackFormat::fp8_block ? Scales::any : Scales::powers_of_two);
      const TestWeight weight = pack_coded(table(), coded, PackArrangement::plain);
      const uint32_t most = 257;
      Tensor in = Tensor::random(DType::bf16, size_t{most} * shape.cols, 4);
      // Whatever is in one row stays there.
      in.set(size_t{3} * shape.cols + 5, kNan);
      in.set(size_t{5} * shape.cols + 11, kInfinity);
      in.set(size_t{6} * shape.cols, -kInfinity);
      Tensor alone(DType::f32, size_t{most} * shape.rows);
      for (uint32_t r = 0; r < most; ++r) {
        Tensor row(DType::bf16, shape.cols);
        for (uint32_t c = 0; c < shape.cols; ++c) row.set(c, in.get(size_t{r} * shape.cols + c));
        const Tensor out = product(table(), weight.weight, row, 1);
        for (uint32_t n = 0; n < shape.rows; ++n) {
          alone.set(size_t{r} * shape.rows + n, out.get(n));
          if (r != 3 && r != 5 && r != 6) {
            ASSERT_TRUE(std::isfinite(out.get(n)));
          }
        }
        if (r == 3) {
          EXPECT_TRUE(std::isnan(out.get(0)));
        }
      }
      for (const uint32_t rows : {1u, 2u, 7u, 16u, 64u, 257u}) {
        for (const int threads : {1, 2}) {
          EXPECT_TRUE(same_bits(alone, 0, product(table(), weight.weight, in, rows, threads), 0,
                                size_t{rows} * shape.rows))
              << pack_format_name(format) << ": " << rows << " rows, " << threads << " threads";
        }
      }
    }
  }
}

// Experts: gate_up and down, plain and in contributions, have the bits of the dequantised ones.
TEST_P(CodedTest, ExpertsHaveTheBitsOfTheDequantizedOnes) {
  for (const PackFormat format : kFormats) {
    for (const Shape shape : {Shape{72, 40}, Shape{200, 192}, Shape{37, 42}}) {
      const uint32_t hidden = shape.rows, intermediate = shape.cols;
      Coded up = Coded::random(format, 2 * intermediate, hidden, 5, Scales::powers_of_two);
      // Gates of a size for which silu is neither 0 nor x.
      for (float& scale : up.scales) scale *= format == PackFormat::mxfp4 ? 0x1p-6f : 0x1p-12f;
      const Coded down = Coded::random(format, hidden, intermediate, 6, Scales::powers_of_two);
      const TestWeight weights[2][2] = {{pack_coded(table(), up, PackArrangement::gate_up),
                                         pack_coded(table(), down, PackArrangement::plain)},
                                        {pack(table(), PackFormat::bf16, PackArrangement::gate_up, up.rows,
                                              hidden, up.dequantized(DType::bf16, 0, hidden)),
                                         pack(table(), PackFormat::bf16, PackArrangement::plain, hidden,
                                              intermediate, down.dequantized(DType::bf16, 0, intermediate))}};
      for (const uint32_t rows : {1u, 7u, 29u}) {
        std::vector<uint32_t> identity(rows);
        std::iota(identity.rbegin(), identity.rend(), 0u);
        const Tensor in = Tensor::random(DType::bf16, size_t{rows} * hidden, 9);
        const Tensor factors = Tensor::random(DType::f32, rows, 10);
        std::vector<Tensor> middles, outs;
        std::vector<std::vector<double>> exacts;
        for (const auto& [gate_up, down_weight] : weights) {
          const ExpertGroup group{&gate_up.weight, &down_weight.weight, identity.data(), identity.data(),
                                  rows};
          Tensor& middle = middles.emplace_back(DType::bf16, size_t{rows} * intermediate);
          GroupedGateUpArgs up_args;
          up_args.groups = {&group, 1};
          up_args.in = in.view(hidden);
          up_args.intermediate = middle.out(intermediate);
          run(table(), table().grouped_gate_up, up_args, 2);
          Tensor& out = outs.emplace_back(DType::f32, size_t{rows} * hidden);
          GroupedDownArgs down_args;
          down_args.groups = {&group, 1};
          down_args.intermediate = middle.view(intermediate);
          down_args.out = out.f32();
          down_args.out_stride = hidden;
          run(table(), table().grouped_down, down_args, 2);
          down_args.contribution_cols = 16;
          down_args.weights = reinterpret_cast<const float*>(factors.data());
          std::vector<double>& exact = exacts.emplace_back(size_t{rows} * hidden);
          down_args.exact_out = exact.data();
          run(table(), table().grouped_down, down_args, 2);
        }
        EXPECT_TRUE(same_bits(middles[0], 0, middles[1], 0, size_t{rows} * intermediate));
        EXPECT_TRUE(same_bits(outs[0], 0, outs[1], 0, size_t{rows} * hidden));
        EXPECT_EQ(exacts[0], exacts[1]);
      }
    }
  }
}

// A matrix that is cut between contributions, inside a scale block too, gives parts whose exact sums add up
// to the whole's, whatever the scales.
TEST_P(CodedTest, ContributionsAddUpWhereverAWeightIsCut) {
  constexpr uint32_t kHidden = 75, kRows = 9, kGranule = 16;
  for (const PackFormat format : kFormats) {
    const Scales kind = format == PackFormat::fp8_block ? Scales::any : Scales::powers_of_two;
    const uint32_t intermediate = 330;
    Coded coded = Coded::random(format, kHidden, intermediate, 3, kind);
    // A block of zeros, whose scale must not matter.
    for (uint32_t c = 128; c < 160; ++c) coded.codes[c] = 0;
    const Tensor middle = Tensor::random(DType::bf16, size_t{kRows} * intermediate, 4);
    const Tensor factors = Tensor::random(DType::f32, kRows, 5);
    std::vector<uint32_t> slots(kRows);
    std::iota(slots.begin(), slots.end(), 0u);
    const auto exact = [&](uint32_t begin, uint32_t end, uint32_t rows) {
      const TestWeight weight = pack_coded(table(), coded, PackArrangement::plain, begin, end);
      const ExpertGroup group{nullptr, &weight.weight, slots.data(), slots.data(), rows};
      std::vector<double> out(size_t{kRows} * kHidden);
      GroupedDownArgs args;
      args.groups = {&group, 1};
      args.intermediate = middle.view(intermediate);
      args.intermediate.data = static_cast<const std::byte*>(middle.data()) + dtype_bytes(DType::bf16, begin);
      args.out_stride = kHidden;
      args.contribution_cols = kGranule;
      args.weights = reinterpret_cast<const float*>(factors.data());
      args.exact_out = out.data();
      run(table(), table().grouped_down, args, 2);
      return out;
    };
    const std::vector<double> whole = exact(0, intermediate, kRows);
    const std::vector<double> few = exact(0, intermediate, 2);
    EXPECT_TRUE(std::equal(few.begin(), few.begin() + 2 * kHidden, whole.begin()));
    for (const uint32_t at : {16u, 64u, 128u, 144u, 256u, 320u}) {
      std::vector<double> sum = exact(0, at, kRows);
      const std::vector<double> rest = exact(at, intermediate, kRows);
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += rest[i];
      ASSERT_EQ(sum, whole) << pack_format_name(format) << " cut at " << at;
    }
  }
}

// The plain product of a part that begins inside a scale block.
TEST_P(CodedTest, PartsBeginInsideABlock) {
  for (const PackFormat format : kFormats) {
    const Coded coded = Coded::random(format, 70, 300, 11, Scales::powers_of_two);
    for (const auto& [begin, end] : {std::pair{2u, 300u}, std::pair{40u, 77u}, std::pair{100u, 300u}}) {
      const TestWeight weight = pack_coded(table(), coded, PackArrangement::plain, begin, end);
      const TestWeight wide = pack(table(), PackFormat::bf16, PackArrangement::plain, coded.rows, end - begin,
                                   coded.dequantized(DType::bf16, begin, end));
      for (const uint32_t rows : {1u, 20u}) {
        const Tensor in = Tensor::random(DType::bf16, size_t{rows} * (end - begin), 3);
        EXPECT_TRUE(same_bits(product(table(), weight.weight, in, rows), 0,
                              product(table(), wide.weight, in, rows), 0, size_t{rows} * coded.rows))
            << pack_format_name(format) << " " << begin << ".." << end << " M " << rows;
      }
    }
  }
}

// Scales that change nothing: those of blocks of zeros, as small or large as they come.
TEST_P(CodedTest, ScalesOfZeroBlocksDoNotMatter) {
  for (const PackFormat format : kFormats) {
    Coded coded = Coded::random(format, 20, 512, 13, Scales::powers_of_two);
    for (uint32_t r = 0; r < coded.rows; ++r) {
      for (const uint32_t block : {0u, 2u, 3u}) {
        if (block == 3 && r % 2 == 0) continue;
        const uint32_t zero = format == PackFormat::mxfp4 ? 8 : 0x80;  // -0
        for (uint32_t c = 0; c < coded.block(); ++c)
          coded.codes[size_t{r} * coded.cols + block * coded.block() + c] =
              static_cast<uint8_t>(c % 2 * zero);
        coded.scales[size_t{r} * coded.blocks() + block] = block == 2 ? 0x1p100f : 0x1p-126f;
      }
    }
    std::fill_n(coded.codes.begin(), coded.cols, uint8_t{0});  // a row of nothing else
    const TestWeight weight = pack_coded(table(), coded, PackArrangement::plain);
    const TestWeight wide = pack(table(), PackFormat::bf16, PackArrangement::plain, coded.rows, coded.cols,
                                 coded.dequantized(DType::bf16, 0, coded.cols));
    for (const uint32_t rows : {1u, 9u}) {
      const Tensor in = Tensor::random(DType::bf16, size_t{rows} * coded.cols, 3);
      EXPECT_TRUE(same_bits(product(table(), weight.weight, in, rows), 0,
                            product(table(), wide.weight, in, rows), 0, size_t{rows} * coded.rows))
          << pack_format_name(format);
    }
  }
}

TEST_P(CodedTest, AScaleOfZeroMakesZeros) {
  Coded coded = Coded::random(PackFormat::fp8_block, 20, 256, 17, Scales::powers_of_two);
  for (uint32_t r = 0; r < coded.rows; ++r) coded.scales[size_t{r} * 2] = 0.0f;
  const TestWeight weight = pack_coded(table(), coded, PackArrangement::plain);
  Tensor in(DType::bf16, 256, 1.0f);
  for (uint32_t c = 128; c < 256; ++c) in.set(c, 0.0f);
  const Tensor out = product(table(), weight.weight, in, 1);
  for (uint32_t n = 0; n < coded.rows; ++n) EXPECT_EQ(out.get(n), 0.0f);
}

// The smallest and the largest scale of e8m0, each in a row of its own.
TEST_P(CodedTest, ScalesReachTheEndsOfTheirRange) {
  Coded coded = Coded::random(PackFormat::mxfp4, 2, 32, 19, Scales::powers_of_two);
  coded.scales = {0x1p-127f, 0x1p125f};
  const TestWeight weight = pack_coded(table(), coded, PackArrangement::plain);
  for (const uint32_t rows : {1u, 9u}) {
    Tensor in(DType::bf16, size_t{rows} * 32);
    for (uint32_t r = 0; r < rows; ++r) in.set(size_t{r} * 32, 1.0f);
    const Tensor out = product(table(), weight.weight, in, rows);
    EXPECT_EQ(static_cast<double>(out.get(0)), coded.weight(0, 0));
    EXPECT_EQ(static_cast<double>(out.get(1)), coded.weight(1, 0));
  }
}

// Ranges of rows packed by themselves give the whole's bytes.
TEST_P(CodedTest, RangesOfRowsPackAlone) {
  for (const PackFormat format : kFormats) {
    for (const PackArrangement arrangement : {PackArrangement::plain, PackArrangement::gate_up}) {
      const Coded coded = Coded::random(format, 170, 77, 23, Scales::powers_of_two);
      const TestWeight whole = pack_coded(table(), coded, arrangement);
      const FileRows file(coded, 0, coded.cols);
      std::vector<std::byte> parts(whole.bytes.size());
      for (const auto& [begin, end] : {std::pair{128u, 170u}, std::pair{0u, 64u}, std::pair{64u, 128u}}) {
        CodedRows rows = file.rows;
        rows.codes += begin * rows.code_stride;
        rows.scales = format == PackFormat::fp8_block
                          ? static_cast<const void*>(file.f32_scales.data() + begin * rows.scale_stride)
                          : file.e8m0_scales.data() + begin * rows.scale_stride;
        ASSERT_EQ(table().pack_coded(format, arrangement, coded.rows, coded.cols, 0, begin, end, rows,
                                     parts.data()),
                  PackFault::none);
      }
      EXPECT_EQ(parts, whole.bytes);
    }
  }
}

TEST(CodedPack, RefusesWhatNoQuantizerMakes) {
  const KernelTable& table = *runnable_kernel_tables().front();
  const auto fault = [&](const Coded& coded) {
    const FileRows file(coded, 0, coded.cols);
    std::vector<std::byte> bytes(
        table.packed_bytes(coded.format, PackArrangement::plain, coded.rows, coded.cols));
    return table.pack_coded(coded.format, PackArrangement::plain, coded.rows, coded.cols, 0, 0, coded.rows,
                            file.rows, bytes.data());
  };
  for (const PackFormat format : kFormats) {
    const Coded good = Coded::random(format, 5, 300, 1, Scales::powers_of_two);
    EXPECT_EQ(fault(good), PackFault::none);
    Coded coded = good;
    coded.scales[4] = kNan;
    EXPECT_EQ(fault(coded), PackFault::bad_scale);
    coded = good;
    coded.scales[1] = std::ldexp(coded.scales[0], 65);
    EXPECT_EQ(fault(coded), PackFault::spread);
    coded.scales[1] = std::ldexp(coded.scales[0], 48);
    EXPECT_EQ(fault(coded), PackFault::none);
  }
  Coded coded = Coded::random(PackFormat::fp8_block, 5, 299, 1, Scales::powers_of_two);
  for (const uint8_t nan : {uint8_t{0x7f}, uint8_t{0xff}}) {
    for (const size_t at : {size_t{0}, size_t{298}, size_t{700}}) {
      const uint8_t was = std::exchange(coded.codes[at], nan);
      EXPECT_EQ(fault(coded), PackFault::nan_code) << at;
      coded.codes[at] = was;
    }
  }
  coded.scales[3] = kInfinity;
  EXPECT_EQ(fault(coded), PackFault::bad_scale);
}

TANDEM_EVERY_TABLE(CodedTest);

}  // namespace
}  // namespace tandem::kernel_testing
