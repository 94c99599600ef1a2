// matmul against float64 on every table: odd sizes, strides, special values, and equal bits for any rows and
// threads.
#include <algorithm>

#include "kernels/testing.h"

namespace tandem::kernel_testing {
namespace {

class MatmulTest : public EveryTable {};

struct Shape {
  uint32_t rows, cols;  // of the weight
};

// What the weight and the rows hold once they have the compute dtype.
Tensor rounded(const Tensor& source, DType dtype) {
  Tensor result(dtype, source.size());
  for (size_t i = 0; i < source.size(); ++i) result.set(i, source.get(i));
  return result;
}

void check(const KernelTable& table, PackFormat format, Shape shape, uint32_t rows, DType out_dtype,
           DType source_dtype) {
  SCOPED_TRACE(::testing::Message() << "N " << shape.rows << " K " << shape.cols << " M " << rows
                                    << " format " << static_cast<int>(format) << " out "
                                    << dtype_name(out_dtype));
  const DType dtype = activation_dtype(format);
  const Tensor source = Tensor::random(source_dtype, size_t{shape.rows} * shape.cols, 1 + shape.cols);
  const TestWeight weight = pack(table, format, PackArrangement::plain, shape.rows, shape.cols, source);
  const Tensor exact = rounded(source, dtype);
  // Rows stand apart, with NaN between them and an odd stride: a value beside a row must never be used.
  const size_t in_stride = shape.cols + 3, out_stride = shape.rows + 5;
  Tensor in(dtype, (rows - 1) * in_stride + shape.cols, kNan);
  const Tensor values = Tensor::random(dtype, size_t{rows} * shape.cols, 2);
  for (uint32_t r = 0; r < rows; ++r) {
    for (uint32_t c = 0; c < shape.cols; ++c)
      in.set(r * in_stride + c, values.get(size_t{r} * shape.cols + c));
  }
  Tensor out(out_dtype, (rows - 1) * out_stride + shape.rows, 77.0f);
  MatmulArgs args;
  args.weights = {&weight.weight, 1};
  args.in = in.view(in_stride);
  args.out = out.out(out_stride);
  args.rows = rows;
  run(table, table.matmul, args);
  for (uint32_t r = 0; r < rows; ++r) {
    for (uint32_t n = 0; n < shape.rows; ++n) {
      double sum = 0, magnitude = 0;
      for (uint32_t c = 0; c < shape.cols; ++c) {
        const double product = static_cast<double>(exact.get(size_t{n} * shape.cols + c)) *
                               static_cast<double>(in.get(r * in_stride + c));
        sum += product;
        magnitude += std::fabs(product);
      }
      // Each of the K additions rounds a partial sum no larger than the magnitude.
      const double bound = (shape.cols + 2) * 0x1p-24 * magnitude + rounding(out_dtype, sum);
      ASSERT_NEAR(out.get(r * out_stride + n), sum, bound) << "row " << r << " output " << n;
    }
    if (r + 1 < rows) {
      for (size_t i = shape.rows; i < out_stride; ++i) ASSERT_EQ(out.get(r * out_stride + i), 77.0f);
    }
  }
}

TEST_P(MatmulTest, AgreesWithFloat64) {
  const Shape shapes[] = {{1, 1},  {15, 3},    {17, 37}, {192, 200}, {320, 64},
                          {64, 1}, {33, 1026}, {50, 1},  {16, 513}};
  for (const Shape shape : shapes) {
    for (const uint32_t rows : {1u, 2u, 3u, 4u, 5u, 6u, 7u, 13u}) {
      for (const PackFormat format : {PackFormat::f32, PackFormat::bf16}) {
        check(table(), format, shape, rows, DType::f32, DType::f32);
        check(table(), format, shape, rows, DType::bf16, DType::bf16);
      }
    }
  }
}

// More rows than one task and more steps than one block.
TEST_P(MatmulTest, AgreesWithFloat64OnManyRows) {
  check(table(), PackFormat::bf16, {80, 777}, 257, DType::f32, DType::bf16);
  check(table(), PackFormat::f32, {80, 777}, 257, DType::f32, DType::bf16);
}

TEST_P(MatmulTest, BitsDoNotDependOnRowsOrThreads) {
  for (const PackFormat format : {PackFormat::f32, PackFormat::bf16}) {
    for (const Shape shape : {Shape{192, 1101}, Shape{17, 200}, Shape{33, 2501}}) {
      const DType dtype = activation_dtype(format);
      const TestWeight weight = pack(table(), format, PackArrangement::plain, shape.rows, shape.cols,
                                     Tensor::random(DType::f32, size_t{shape.rows} * shape.cols, 3));
      const uint32_t most = 257;
      const Tensor in = Tensor::random(dtype, size_t{most} * shape.cols, 4);
      MatmulArgs args;
      args.weights = {&weight.weight, 1};
      args.in = in.view(shape.cols);
      Tensor alone(DType::f32, size_t{most} * shape.rows);
      args.out = alone.out(shape.rows);
      args.rows = 1;
      for (uint32_t r = 0; r < most; ++r) {
        args.in.data = static_cast<const std::byte*>(in.data()) + r * shape.cols * dtype_bytes(dtype, 1);
        args.out.data = alone.f32() + size_t{r} * shape.rows;
        run(table(), table().matmul, args);
      }
      args.in.data = in.data();
      for (const uint32_t rows : {1u, 2u, 7u, 16u, 64u, 257u}) {
        for (const int threads : {1, 2}) {
          Tensor batch(DType::f32, size_t{rows} * shape.rows);
          args.out = batch.out(shape.rows);
          args.rows = rows;
          run(table(), table().matmul, args, threads);
          EXPECT_TRUE(same_bits(alone, 0, batch, 0, size_t{rows} * shape.rows))
              << rows << " rows, " << threads;
        }
      }
    }
  }
}

// One weight a head, as in the absorbed projections of MLA.
TEST_P(MatmulTest, BatchOfWeights) {
  const uint32_t heads = 3, width = 24, out_width = 40, rows = 9;
  std::vector<TestWeight> weights;
  std::vector<PackedWeight> batch;
  for (uint32_t h = 0; h < heads; ++h) {
    weights.push_back(pack(table(), PackFormat::bf16, PackArrangement::plain, out_width, width,
                           Tensor::random(DType::f32, size_t{out_width} * width, 10 + h)));
    batch.push_back(weights.back().weight);
  }
  const Tensor in = Tensor::random(DType::bf16, size_t{rows} * heads * width, 5);
  Tensor out(DType::f32, size_t{rows} * heads * out_width);
  MatmulArgs args;
  args.weights = batch;
  args.in = in.view(heads * width);
  args.in_batch_stride = width;
  args.out = out.out(heads * out_width);
  args.out_batch_stride = out_width;
  args.rows = rows;
  run(table(), table().matmul, args, 2);
  for (uint32_t h = 0; h < heads; ++h) {
    Tensor single(DType::f32, size_t{rows} * out_width);
    MatmulArgs one = args;
    one.weights = {&batch[h], 1};
    one.in.data = static_cast<const uint16_t*>(in.data()) + h * width;
    one.out = single.out(out_width);
    run(table(), table().matmul, one);
    for (uint32_t r = 0; r < rows; ++r) {
      EXPECT_TRUE(same_bits(single, r * out_width, out, (r * heads + h) * out_width, out_width))
          << h << " " << r;
    }
  }
}

// A special value reaches exactly the rows and the outputs that it belongs to.
TEST_P(MatmulTest, NanInfinityAndDenormals) {
  const uint32_t n = 20, k = 33, rows = 8;
  for (const PackFormat format : {PackFormat::f32, PackFormat::bf16}) {
    const DType dtype = activation_dtype(format);
    Tensor source(DType::f32, n * k, 1.0f);
    source.set(4 * k + 32, kNan);
    const TestWeight weight = pack(table(), format, PackArrangement::plain, n, k, source);
    Tensor in(dtype, rows * k, 1.0f);
    in.set(1 * k + 7, kNan);
    in.set(2 * k + 32, kInfinity);
    for (uint32_t i = 0; i < k; ++i) in.set(3 * k + i, 1e-39f);  // denormal
    Tensor out(DType::f32, rows * n);
    MatmulArgs args;
    args.weights = {&weight.weight, 1};
    args.in = in.view(k);
    args.out = out.out(n);
    args.rows = rows;
    run(table(), table().matmul, args);
    for (uint32_t r = 0; r < rows; ++r) {
      for (uint32_t o = 0; o < n; ++o) {
        const float value = out.get(r * n + o);
        if (o == 4 || r == 1) {
          EXPECT_TRUE(std::isnan(value)) << r << " " << o;
        } else if (r == 2) {
          EXPECT_EQ(value, kInfinity) << o;
        } else if (r == 3) {
          EXPECT_NEAR(value, 33 * 1e-39, 33 * 1.2e-38) << o;
        } else {
          EXPECT_EQ(value, 33.0f) << r << " " << o;
        }
      }
    }
  }
}

TEST_P(MatmulTest, NothingToDo) {
  MatmulArgs args;
  EXPECT_EQ(table().matmul.tasks(args), 0u);
  const TestWeight weight =
      pack(table(), PackFormat::f32, PackArrangement::plain, 16, 16, Tensor(DType::f32, 256, 1.0f));
  args.weights = {&weight.weight, 1};
  EXPECT_EQ(table().matmul.tasks(args), 0u);
}

// Ranges of rows may be packed apart, and both source dtypes give the same bytes where the values are the
// same.
TEST_P(MatmulTest, PackingInPieces) {
  const uint32_t n = 200, k = 37;
  const Tensor narrow = Tensor::random(DType::bf16, n * k, 6);
  const Tensor wide = rounded(narrow, DType::f32);
  for (const PackFormat format : {PackFormat::f32, PackFormat::bf16}) {
    for (const PackArrangement arrangement : {PackArrangement::plain, PackArrangement::gate_up}) {
      const TestWeight whole = pack(table(), format, arrangement, n, k, narrow);
      EXPECT_EQ(whole.bytes.size() % 64, 0u);
      EXPECT_EQ(whole.bytes, pack(table(), format, arrangement, n, k, wide).bytes);
      std::vector<std::byte> pieces(whole.bytes.size());
      for (uint32_t row = 0; row < n; row += 64) {
        table().pack(format, arrangement, n, k, row, std::min(row + 64, n), DType::bf16,
                     static_cast<const uint16_t*>(narrow.data()) + size_t{row} * k, pieces.data());
      }
      EXPECT_EQ(whole.bytes, pieces);
    }
  }
}

TANDEM_EVERY_TABLE(MatmulTest);

}  // namespace
}  // namespace tandem::kernel_testing
