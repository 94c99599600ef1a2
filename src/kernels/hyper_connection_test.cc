// The kernels of hyper-connections on every table, against float64 with the orientation of the mixing matrix
// written out, and with equal bits whoever shares the call.
#include "kernels/testing.h"

namespace tandem::kernel_testing {
namespace {

class HyperConnectionTest : public EveryTable {};

double sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}

struct Shape {
  uint32_t rows, num_streams, hidden;
};

TEST_P(HyperConnectionTest, MixAgreesWithFloat64AndWithRowsAlone) {
  for (const Shape shape : {Shape{9, 4, 48}, Shape{4, 4, 20}, Shape{3, 2, 5}}) {
    const uint32_t cols = shape.num_streams * shape.hidden;
    const uint32_t outs = shape.num_streams * (2 + shape.num_streams);
    Tensor streams = Tensor::random(DType::f32, size_t{shape.rows} * cols, 1);
    Tensor weights = Tensor::random(DType::f32, size_t{outs} * cols, 2);
    Tensor out(DType::f32, size_t{shape.rows} * outs, kNan);
    ConnectionMixArgs args{streams.f32(), weights.f32(), out.f32(), shape.rows, cols, outs, 1e-3f};
    run(table(), table().connection_mix, args, 2);
    for (uint32_t r = 0; r < shape.rows; ++r) {
      for (uint32_t o = 0; o < outs; ++o) {
        double sum = 0, magnitude = 0, squares = 0;
        for (uint32_t i = 0; i < cols; ++i) {
          const double x = streams.get(size_t{r} * cols + i), w = weights.get(size_t{o} * cols + i);
          sum += x * w;
          magnitude += std::fabs(x * w);
          squares += x * x;
        }
        const double factor = 1 / std::sqrt(squares / cols + static_cast<double>(1e-3f));
        ASSERT_NEAR(out.get(size_t{r} * outs + o), sum * factor, (cols + 8) * 0x1p-24 * magnitude * factor);
      }
    }
    for (uint32_t r = 0; r < shape.rows; ++r) {
      Tensor alone(DType::f32, outs, kNan);
      ConnectionMixArgs one{
          streams.f32() + size_t{r} * cols, weights.f32(), alone.f32(), 1, cols, outs, 1e-3f};
      run(table(), table().connection_mix, one);
      EXPECT_TRUE(same_bits(out, size_t{r} * outs, alone, 0, outs)) << "row " << r;
    }
  }
}

TEST_P(HyperConnectionTest, CollapseAndExpandAgreeWithFloat64) {
  for (const Shape shape : {Shape{5, 4, 40}, Shape{2, 3, 17}}) {
    const uint32_t n = shape.num_streams, hidden = shape.hidden, rows = shape.rows;
    const uint32_t mixes_cols = n * (2 + n), connection_cols = n + n * n, iterations = 7;
    const double epsilon = static_cast<double>(1e-3f);  // large enough to show where it is added
    Tensor streams = Tensor::random(DType::f32, size_t{rows} * n * hidden, 3);
    Tensor mixes = Tensor::random(DType::f32, size_t{rows} * mixes_cols, 4);
    Tensor base = Tensor::random(DType::f32, mixes_cols, 5);
    Tensor scale = Tensor::random(DType::f32, 3, 6);
    Tensor x(DType::f32, size_t{rows} * hidden, kNan);
    Tensor connection(DType::f32, size_t{rows} * connection_cols, kNan);
    ConnectionCollapseArgs collapse;
    collapse.streams = streams.f32();
    collapse.mixes = mixes.f32();
    collapse.base = base.f32();
    collapse.scale = scale.f32();
    collapse.x = x.f32();
    collapse.connection = connection.f32();
    collapse.rows = rows;
    collapse.hidden = hidden;
    collapse.num_streams = n;
    collapse.iterations = iterations;
    collapse.epsilon = 1e-3f;
    run(table(), table().connection_collapse, collapse, 2);

    Tensor y = Tensor::random(DType::f32, size_t{rows} * hidden, 7);
    Tensor mixed = streams;
    ConnectionExpandArgs expand;
    expand.streams = mixed.f32();
    expand.connection = connection.f32();
    expand.first = y.data();
    expand.rows = rows;
    expand.hidden = hidden;
    expand.num_streams = n;
    run(table(), table().connection_expand, expand, 2);

    for (uint32_t r = 0; r < rows; ++r) {
      const auto mix = [&](uint32_t i, uint32_t site) {
        return static_cast<double>(mixes.get(size_t{r} * mixes_cols + i)) *
                   static_cast<double>(scale.get(site)) +
               static_cast<double>(base.get(i));
      };
      std::vector<double> pre, post;
      std::vector<std::vector<double>> c(n, std::vector<double>(n));
      for (uint32_t i = 0; i < n; ++i) {
        pre.push_back(sigmoid(mix(i, 0)) + epsilon);
        post.push_back(2 * sigmoid(mix(n + i, 1)));
        double sum = 0;
        for (uint32_t j = 0; j < n; ++j) sum += c[i][j] = std::exp(mix(2 * n + i * n + j, 2));
        for (uint32_t j = 0; j < n; ++j) c[i][j] = c[i][j] / sum + epsilon;
      }
      for (uint32_t iteration = 0; iteration < iterations; ++iteration) {
        for (uint32_t i = 0; iteration > 0 && i < n; ++i) {
          double sum = epsilon;
          for (uint32_t j = 0; j < n; ++j) sum += c[i][j];
          for (uint32_t j = 0; j < n; ++j) c[i][j] /= sum;
        }
        for (uint32_t j = 0; j < n; ++j) {
          double sum = epsilon;
          for (uint32_t i = 0; i < n; ++i) sum += c[i][j];
          for (uint32_t i = 0; i < n; ++i) c[i][j] /= sum;
        }
      }
      for (uint32_t j = 0; j < n; ++j) {
        EXPECT_NEAR(connection.get(r * connection_cols + j), post[j], 2e-6);
        for (uint32_t i = 0; i < n; ++i) {
          EXPECT_NEAR(connection.get(r * connection_cols + n + i * n + j), c[i][j], 2e-6) << i << " " << j;
        }
      }
      const auto stream = [&](uint32_t i, uint32_t d) {
        return static_cast<double>(streams.get((size_t{r} * n + i) * hidden + d));
      };
      for (uint32_t d = 0; d < hidden; ++d) {
        double sum = 0;
        for (uint32_t i = 0; i < n; ++i) sum += pre[i] * stream(i, d);
        ASSERT_NEAR(x.get(size_t{r} * hidden + d), sum, 2e-5);
        for (uint32_t j = 0; j < n; ++j) {
          // The first index is summed over: stream j receives C[i, j] of stream i.
          double expected = post[j] * static_cast<double>(y.get(size_t{r} * hidden + d));
          for (uint32_t i = 0; i < n; ++i) expected += c[i][j] * stream(i, d);
          ASSERT_NEAR(mixed.get((size_t{r} * n + j) * hidden + d), expected, 2e-5);
        }
      }
      // Alone, the same bits.
      Tensor alone_x(DType::f32, hidden, kNan), alone(DType::f32, connection_cols, kNan);
      ConnectionCollapseArgs one = collapse;
      one.streams = streams.f32() + size_t{r} * n * hidden;
      one.mixes = mixes.f32() + size_t{r} * mixes_cols;
      one.x = alone_x.f32();
      one.connection = alone.f32();
      one.rows = 1;
      run(table(), table().connection_collapse, one);
      EXPECT_TRUE(same_bits(x, size_t{r} * hidden, alone_x, 0, hidden));
      EXPECT_TRUE(same_bits(connection, size_t{r} * connection_cols, alone, 0, connection_cols));
    }
  }
}

// The head sums the streams and mixes nothing; in bf16 both results are rounded once.
TEST_P(HyperConnectionTest, HeadAndRounding) {
  const uint32_t n = 4, hidden = 24;
  Tensor streams = Tensor::random(DType::f32, n * hidden, 8);
  Tensor mixes = Tensor::random(DType::f32, n, 9);
  Tensor base = Tensor::random(DType::f32, n, 10);
  const float scale = 0.7f;
  Tensor x(DType::f32, hidden, kNan), rounded(DType::f32, hidden, kNan);
  ConnectionCollapseArgs args;
  args.streams = streams.f32();
  args.mixes = mixes.f32();
  args.base = base.f32();
  args.scale = &scale;
  args.x = x.f32();
  args.rows = 1;
  args.hidden = hidden;
  args.num_streams = n;
  args.epsilon = 1e-6f;
  run(table(), table().connection_collapse, args);
  args.x = rounded.f32();
  args.round_to_bf16 = true;
  run(table(), table().connection_collapse, args);
  for (uint32_t d = 0; d < hidden; ++d) {
    double sum = 0;
    for (uint32_t i = 0; i < n; ++i) {
      const double pre = sigmoid(static_cast<double>(mixes.get(i)) * static_cast<double>(scale) +
                                 static_cast<double>(base.get(i)));
      sum += (pre + 1e-6) * static_cast<double>(streams.get(i * hidden + d));
    }
    EXPECT_NEAR(x.get(d), sum, 1e-5);
    EXPECT_EQ(rounded.get(d), to_float(to_bf16(x.get(d))));
  }
}

// What the experts reply: bf16, float32 or float64, in one part or two.
TEST_P(HyperConnectionTest, ExpandTakesEveryReply) {
  const uint32_t n = 4, hidden = 35, rows = 3;
  Tensor streams = Tensor::random(DType::f32, rows * n * hidden, 11);
  Tensor connection = Tensor::random(DType::f32, rows * (n + n * n), 12);
  Tensor first = Tensor::random(DType::bf16, rows * hidden, 13);
  Tensor second = Tensor::random(DType::bf16, rows * hidden, 14);
  for (const bool two : {false, true}) {
    std::vector<float> wide_first, wide_second, sums;
    std::vector<double> exact_first, exact_second;
    for (size_t i = 0; i < first.size(); ++i) {
      wide_first.push_back(first.get(i));
      wide_second.push_back(second.get(i));
      exact_first.push_back(first.get(i));
      exact_second.push_back(second.get(i));
      sums.push_back(two ? first.get(i) + second.get(i) : first.get(i));
    }
    const auto expand = [&](DType dtype, const void* one, const void* other) {
      Tensor out = streams;
      ConnectionExpandArgs args;
      args.streams = out.f32();
      args.connection = connection.f32();
      args.dtype = dtype;
      args.first = one;
      args.second = other;
      args.rows = rows;
      args.hidden = hidden;
      args.num_streams = n;
      run(table(), table().connection_expand, args);
      return out;
    };
    const Tensor expected = expand(DType::f32, sums.data(), nullptr);
    const Tensor f32 = expand(DType::f32, wide_first.data(), two ? wide_second.data() : nullptr);
    const Tensor f64 = expand(DType::f64, exact_first.data(), two ? exact_second.data() : nullptr);
    EXPECT_TRUE(same_bits(expected, 0, f32, 0, f32.size()));
    EXPECT_TRUE(same_bits(expected, 0, f64, 0, f64.size()));
    for (float& sum : sums) sum = to_float(to_bf16(sum));
    const Tensor rounded = expand(DType::f32, sums.data(), nullptr);
    const Tensor narrow = expand(DType::bf16, first.data(), two ? second.data() : nullptr);
    EXPECT_TRUE(same_bits(rounded, 0, narrow, 0, narrow.size()));
  }
}

TANDEM_EVERY_TABLE(HyperConnectionTest);

}  // namespace
}  // namespace tandem::kernel_testing
