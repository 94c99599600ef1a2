// int8 weights on every table: the defined result bit for bit (so all tables agree), whatever rows are
// computed together, in projections, experts and contributions; and against float64 on the weights and rows
// themselves.
#include "kernels/int8_testing.h"

#include <numeric>

namespace tandem::kernel_testing {
namespace {

class Int8Test : public EveryTable {};

struct Shape {
  uint32_t rows, cols;
};
// Whole and broken steps, panels, groups and stretches.
constexpr Shape kShapes[] = {{1, 1},   {16, 4},    {17, 37},   {64, 128}, {33, 129},
                             {50, 33}, {80, 2777}, {96, 1024}, {7, 513},  {130, 386}};

// The result as int8_product.h defines it, written anew: exact sums of each block, then float32 step by step.
float defined(const Int8Matrix& weight, uint32_t n, const Int8Activations& in, uint32_t row,
              uint32_t begin = 0, uint32_t end = UINT32_MAX) {
  float sum = 0;
  bool first = true;
  end = std::min(end, weight.cols);
  for (uint32_t c = begin; c < end;) {
    const uint32_t stop = std::min(end, (c / in.block() + 1) * in.block());
    const float scale = in.scale(row, c);
    int64_t block = 0;
    for (; c < stop; ++c)
      block += int64_t{weight.codes[size_t{n} * weight.cols + c]} * in.values[size_t{row} * in.cols + c];
    const float part = static_cast<float>(block) * scale;
    sum = first ? part : sum + part;
    first = false;
  }
  return sum * weight.scales[n];
}

Tensor product(const KernelTable& table, const PackedWeight& weight, ActivationView in, uint32_t rows,
               int threads = 1) {
  Tensor out(DType::f32, size_t{rows} * weight.rows, 77.0f);
  MatmulArgs args;
  args.weights = {&weight, 1};
  args.in = in;
  args.out = out.out(weight.rows);
  args.rows = rows;
  run(table, table.matmul, args, threads);
  return out;
}

TEST_P(Int8Test, ProjectionsHaveTheBitsOfTheDefinition) {
  for (const Shape shape : kShapes) {
    const Int8Matrix matrix = Int8Matrix::random(shape.rows, shape.cols, shape.cols);
    const TestWeight weight = matrix.pack(table(), PackArrangement::plain);
    for (const uint32_t rows : {1u, 2u, 5u, 7u, 16u}) {
      const Tensor in = Tensor::random(DType::bf16, size_t{rows} * shape.cols, 2);
      const Int8Activations quantized = Int8Activations::quantized(table(), in, rows, shape.cols, 0);
      const Tensor out = product(table(), weight.weight, quantized.view(), rows);
      for (uint32_t r = 0; r < rows; ++r) {
        for (uint32_t n = 0; n < shape.rows; ++n)
          ASSERT_EQ(out.get(size_t{r} * shape.rows + n), defined(matrix, n, quantized, r))
              << "N " << shape.rows << " K " << shape.cols << " row " << r << " of " << rows << " output "
              << n;
      }
    }
  }
}

// Against the weights and the rows before they were rounded: half a step of each factor.
TEST_P(Int8Test, AgreesWithFloat64) {
  const uint32_t n = 37, k = 301, rows = 7;
  const Int8Matrix matrix = Int8Matrix::random(n, k, 5);
  const TestWeight weight = matrix.pack(table(), PackArrangement::plain);
  const Tensor in = Tensor::random(DType::bf16, size_t{rows} * k, 6);
  const Int8Activations quantized = Int8Activations::quantized(table(), in, rows, k, 0);
  const Tensor out = product(table(), weight.weight, quantized.view(), rows);
  for (uint32_t r = 0; r < rows; ++r) {
    for (uint32_t o = 0; o < n; ++o) {
      double sum = 0, weights = 0;
      for (uint32_t c = 0; c < k; ++c) {
        const double w =
            static_cast<double>(matrix.codes[size_t{o} * k + c]) * static_cast<double>(matrix.scales[o]);
        sum += w * static_cast<double>(in.get(size_t{r} * k + c));
        weights += std::fabs(w);
      }
      const double half_step = 0.5001 * static_cast<double>(quantized.scales[r]);
      ASSERT_NEAR(out.get(size_t{r} * n + o), sum, half_step * weights + 1e-5 * std::fabs(sum));
    }
  }
}

// The longest sums of one sign that a weight may have.
TEST_P(Int8Test, LongestSumsDoNotOverflow) {
  const uint32_t k = kInt8MostCols;
  Int8Matrix matrix{2, k, std::vector<int8_t>(2 * size_t{k}, 127), {1.0f, 1.0f}};
  std::fill_n(matrix.codes.begin() + k, k, int8_t{-127});
  const TestWeight weight = matrix.pack(table(), PackArrangement::plain);
  for (const int8_t value : {int8_t{127}, int8_t{-127}}) {
    Int8Activations in{1, k, 0, std::vector<int8_t>(k, value), {1.0f}};
    const Tensor out = product(table(), weight.weight, in.view(), 1);
    EXPECT_EQ(out.get(0), static_cast<float>(int64_t{127} * value * k));
    EXPECT_EQ(out.get(1), static_cast<float>(int64_t{-127} * value * k));
  }
}

TEST_P(Int8Test, BitsDoNotDependOnRowsOrThreads) {
  for (const Shape shape : {Shape{192, 1101}, Shape{17, 200}}) {
    const Int8Matrix matrix = Int8Matrix::random(shape.rows, shape.cols, 3);
    const TestWeight weight = matrix.pack(table(), PackArrangement::plain);
    const uint32_t most = 257;
    Tensor in = Tensor::random(DType::bf16, size_t{most} * shape.cols, 4);
    in.set(size_t{3} * shape.cols + 5, kNan);
    in.set(size_t{5} * shape.cols + 11, kInfinity);
    for (uint32_t c = 0; c < shape.cols; ++c) in.set(size_t{6} * shape.cols + c, 1e-39f);  // denormal: zero
    const Int8Activations all = Int8Activations::quantized(table(), in, most, shape.cols, 0);
    Tensor alone(DType::f32, size_t{most} * shape.rows);
    for (uint32_t r = 0; r < most; ++r) {
      ActivationView view = all.view();
      view.data = all.values.data() + size_t{r} * shape.cols;
      view.scales = all.scales.data() + r;
      const Tensor out = product(table(), weight.weight, view, 1);
      for (uint32_t n = 0; n < shape.rows; ++n) {
        alone.set(size_t{r} * shape.rows + n, out.get(n));
        // A row with a value that is no number has none in its result, and no other row does.
        ASSERT_EQ(std::isnan(out.get(n)), r == 3 || r == 5) << r;
        if (r == 6) {
          ASSERT_EQ(out.get(n), 0.0f);
        }
      }
    }
    for (const uint32_t rows : {1u, 2u, 7u, 16u, 64u, 257u}) {
      for (const int threads : {1, 2}) {
        EXPECT_TRUE(same_bits(alone, 0, product(table(), weight.weight, all.view(), rows, threads), 0,
                              size_t{rows} * shape.rows))
            << rows << " rows, " << threads << " threads";
      }
    }
  }
}

// Scales of blocks of columns: of a whole weight, of slices on block borders, and in contributions.
TEST_P(Int8Test, DownInBlocksSlicesAndContributions) {
  for (const auto& [hidden, intermediate, block] :
       {std::tuple{72u, 192u, 16u}, std::tuple{37u, 40u, 8u}, std::tuple{130u, 1408u, 128u},
        std::tuple{33u, 300u, 64u}, std::tuple{20u, 36u, 4u}, std::tuple{64u, 2500u, 128u}}) {
    const Int8Matrix matrix = Int8Matrix::random(hidden, intermediate, 5);
    const TestWeight whole = matrix.pack(table(), PackArrangement::plain);
    for (const uint32_t rows : {1u, 7u, 29u}) {
      SCOPED_TRACE(::testing::Message()
                   << hidden << " x " << intermediate << " blocks of " << block << " M " << rows);
      std::vector<uint32_t> slots(rows);
      std::iota(slots.rbegin(), slots.rend(), 0u);
      const Tensor in = Tensor::random(DType::bf16, size_t{rows} * intermediate, 9);
      const Int8Activations quantized = Int8Activations::quantized(table(), in, rows, intermediate, block);
      const Tensor factors = Tensor::random(DType::f32, rows, 10);
      const auto down = [&](const PackedWeight& weight, ActivationView view, uint32_t contribution,
                            Tensor* out, std::vector<double>* exact) {
        const ExpertGroup group{nullptr, &weight, slots.data(), slots.data(), rows};
        GroupedDownArgs args;
        args.groups = {&group, 1};
        args.intermediate = view;
        args.scale_block_cols = block;
        args.out_stride = hidden;
        if (out != nullptr) args.out = out->f32();
        args.contribution_cols = contribution;
        args.weights = reinterpret_cast<const float*>(factors.data());
        if (exact != nullptr) args.exact_out = exact->data();
        run(table(), table().grouped_down, args, 2);
      };
      Tensor out(DType::f32, size_t{rows} * hidden);
      down(whole.weight, quantized.view(), 0, &out, nullptr);
      for (uint32_t r = 0; r < rows; ++r) {
        for (uint32_t n = 0; n < hidden; ++n)
          ASSERT_EQ(out.get(size_t{r} * hidden + n), defined(matrix, n, quantized, r)) << r << " " << n;
      }
      // Two slices, with the scales of their own blocks, add up to the whole.
      for (const uint32_t contribution : {block, 4 * block}) {
        std::vector<double> exact(size_t{rows} * hidden), parts(size_t{rows} * hidden);
        down(whole.weight, quantized.view(), contribution, nullptr, &exact);
        const uint32_t cut = intermediate / (2 * contribution) * contribution;
        for (const auto& [begin, end] : {std::pair{0u, cut}, std::pair{cut, intermediate}}) {
          if (begin == end) continue;
          const TestWeight slice = matrix.pack(table(), PackArrangement::plain, begin, end);
          ActivationView view = quantized.view();
          view.data = quantized.values.data() + begin;
          view.scales = quantized.scales.data() + begin / block;
          std::vector<double> part(size_t{rows} * hidden);
          down(slice.weight, view, contribution, nullptr, &part);
          for (size_t i = 0; i < part.size(); ++i) parts[i] += part[i];
        }
        EXPECT_EQ(exact, parts) << contribution;
        double expected = 0;
        for (uint32_t c = 0; c < intermediate; c += contribution) {
          const double weighted = static_cast<double>(factors.get(0)) *
                                  static_cast<double>(defined(matrix, 1, quantized, 0, c, c + contribution));
          expected += std::nearbyint(weighted * 0x1p30) * 0x1p-30;
        }
        EXPECT_EQ(exact[1], expected) << contribution;
      }
    }
  }
}

TEST_P(Int8Test, GateUpTakesItsRowsByTheirIndex) {
  const uint32_t hidden = 70, intermediate = 37, rows = 9;
  const Int8Matrix matrix = Int8Matrix::random(2 * intermediate, hidden, 15);
  const TestWeight weight = matrix.pack(table(), PackArrangement::gate_up);
  const Tensor in = Tensor::random(DType::bf16, size_t{rows} * hidden, 9, 0.01f);
  const Int8Activations quantized = Int8Activations::quantized(table(), in, rows, hidden, 0);
  const uint32_t index[] = {8, 2, 3, 3}, slots[] = {1, 0, 3, 2};
  const ExpertGroup group{&weight.weight, nullptr, index, slots, 4};
  Tensor middle(DType::f32, size_t{4} * intermediate);
  GroupedGateUpArgs args;
  args.groups = {&group, 1};
  args.in = quantized.view();
  args.intermediate = middle.out(intermediate);
  run(table(), table().grouped_gate_up, args, 2);
  for (uint32_t i = 0; i < 4; ++i) {
    for (uint32_t n = 0; n < intermediate; ++n) {
      const double gate = static_cast<double>(defined(matrix, n, quantized, index[i])),
                   up = static_cast<double>(defined(matrix, intermediate + n, quantized, index[i]));
      const double expected = gate / (1 + std::exp(-gate)) * up;
      ASSERT_NEAR(middle.get(size_t{slots[i]} * intermediate + n), expected,
                  1e-5 * std::fabs(expected) + 1e-30);
    }
  }
}

// One weight a head: every head's columns share the row's scale.
TEST_P(Int8Test, BatchOfWeights) {
  const uint32_t heads = 3, width = 24, out_width = 40, rows = 9;
  std::vector<Int8Matrix> matrices;
  std::vector<TestWeight> weights;
  std::vector<PackedWeight> batch;
  for (uint32_t h = 0; h < heads; ++h) {
    matrices.push_back(Int8Matrix::random(out_width, width, 10 + h));
    weights.push_back(matrices.back().pack(table(), PackArrangement::plain));
    batch.push_back(weights.back().weight);
  }
  const Tensor in = Tensor::random(DType::bf16, size_t{rows} * heads * width, 5);
  const Int8Activations quantized = Int8Activations::quantized(table(), in, rows, heads * width, 0);
  Tensor out(DType::f32, size_t{rows} * heads * out_width);
  MatmulArgs args;
  args.weights = batch;
  args.in = quantized.view();
  args.in_batch_stride = width;
  args.out = out.out(heads * out_width);
  args.out_batch_stride = out_width;
  args.rows = rows;
  run(table(), table().matmul, args, 2);
  for (uint32_t r = 0; r < rows; ++r) {
    for (uint32_t h = 0; h < heads; ++h) {
      Int8Activations part{rows, width, 0, {}, quantized.scales};
      for (uint32_t i = 0; i < rows; ++i) {
        const auto* from = quantized.values.data() + (size_t{i} * heads + h) * width;
        part.values.insert(part.values.end(), from, from + width);
      }
      for (uint32_t n = 0; n < out_width; ++n)
        ASSERT_EQ(out.get((size_t{r} * heads + h) * out_width + n), defined(matrices[h], n, part, r));
    }
  }
}

// Blocks and rows by index: each block as if it were a row, other rows untouched.
TEST_P(Int8Test, QuantizesBlocksOfNamedRows) {
  const uint32_t rows = 6, cols = 100, block = 32;
  Tensor in = Tensor::random(DType::bf16, size_t{rows} * cols, 3);
  in.set(2 * cols + 40, kInfinity);
  std::vector<int8_t> values(size_t{rows} * cols, 55);
  std::vector<float> scales(rows * 4, 55.0f);
  const uint32_t index[] = {4, 2};
  QuantizeArgs args;
  args.in = in.view(cols);
  args.format = ActivationFormat::int8;
  args.values = values.data();
  args.scales = scales.data();
  args.rows = 2;
  args.cols = cols;
  args.block_cols = block;
  args.row_index = index;
  run(table(), table().quantize_rows, args, 2);
  for (uint32_t r = 0; r < rows; ++r) {
    for (uint32_t b = 0; b < 4; ++b) {
      const uint32_t begin = b * block, width = std::min(cols - begin, block);
      if (r != 4 && r != 2) {
        EXPECT_EQ(scales[r * 4 + b], 55.0f);
        EXPECT_EQ(values[r * cols + begin], 55);
        continue;
      }
      Tensor part(DType::bf16, width);
      for (uint32_t c = 0; c < width; ++c) part.set(c, in.get(size_t{r} * cols + begin + c));
      const Int8Activations alone = Int8Activations::quantized(table(), part, 1, width, 0);
      EXPECT_EQ(std::isnan(scales[r * 4 + b]), r == 2 && b == 1);
      if (!std::isnan(alone.scales[0])) {
        EXPECT_EQ(scales[r * 4 + b], alone.scales[0]);
      }
      for (uint32_t c = 0; c < width; ++c) EXPECT_EQ(values[r * cols + begin + c], alone.values[c]);
    }
  }
}

TEST_P(Int8Test, RangesOfRowsPackAlone) {
  for (const PackArrangement arrangement : {PackArrangement::plain, PackArrangement::gate_up}) {
    const Int8Matrix matrix = Int8Matrix::random(170, 77, 23);
    const TestWeight whole = matrix.pack(table(), arrangement);
    std::vector<std::byte> parts(whole.bytes.size());
    for (const auto& [begin, end] : {std::pair{128u, 170u}, std::pair{0u, 64u}, std::pair{64u, 128u}}) {
      const CodedRows rows = {reinterpret_cast<const std::byte*>(matrix.codes.data()) + size_t{begin} * 77,
                              77, matrix.scales.data() + begin, 1};
      ASSERT_EQ(table().pack_coded(PackFormat::int8, arrangement, 170, 77, 0, begin, end, rows, parts.data()),
                PackFault::none);
    }
    EXPECT_EQ(parts, whole.bytes);
  }
}

TANDEM_EVERY_TABLE(Int8Test);

}  // namespace
}  // namespace tandem::kernel_testing
