// combine, rms_norm, rope, residual_add and convert on every table, and the choice of a table.
#include <cstdlib>

#include "kernels/testing.h"

namespace tandem::kernel_testing {
namespace {

class ElementwiseTest : public EveryTable {};

constexpr uint32_t kWidths[] = {1, 15, 16, 17, 63, 200, 1025};

TEST_P(ElementwiseTest, RmsNormAgreesWithFloat64) {
  for (const uint32_t cols : kWidths) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const uint32_t outer = 3, inner = 2;
      const size_t in_inner = cols + 2, in_outer = inner * in_inner + 1, out_outer = inner * cols + 4;
      Tensor in(DType::f32, outer * in_outer, kNan);
      const Tensor values = Tensor::random(DType::f32, outer * inner * cols, 1, 2.0f);
      const Tensor weight = Tensor::random(DType::f32, cols, 2);
      for (uint32_t r = 0; r < outer * inner; ++r) {
        for (uint32_t c = 0; c < cols; ++c) {
          in.set(r / inner * in_outer + r % inner * in_inner + c, values.get(r * cols + c));
        }
      }
      Tensor out(dtype, outer * out_outer, 9.0f);
      RmsNormArgs args;
      args.in = in.f32();
      args.in_outer_stride = in_outer;
      args.in_inner_stride = in_inner;
      args.out = out.out(out_outer);
      args.out_inner_stride = cols;
      args.weight = reinterpret_cast<const float*>(weight.data());
      args.outer = outer;
      args.inner = inner;
      args.cols = cols;
      args.epsilon = 1e-5f;
      run(table(), table().rms_norm, args, 2);
      for (uint32_t r = 0; r < outer * inner; ++r) {
        double squares = 0;
        for (uint32_t c = 0; c < cols; ++c)
          squares += std::pow(static_cast<double>(values.get(r * cols + c)), 2);
        const double factor = 1 / std::sqrt(squares / cols + static_cast<double>(1e-5f));
        for (uint32_t c = 0; c < cols; ++c) {
          const double expected =
              static_cast<double>(values.get(r * cols + c)) * factor * static_cast<double>(weight.get(c));
          // The sum of squares is off by at most cols roundings, of which the root halves the effect.
          const double bound = (cols / 2.0 + 6) * 0x1p-24 * std::fabs(expected) + rounding(dtype, expected);
          ASSERT_NEAR(out.get(r / inner * out_outer + r % inner * cols + c), expected, bound)
              << cols << " " << r;
        }
      }
      ASSERT_EQ(out.get(inner * cols), 9.0f);
    }
  }
}

TEST_P(ElementwiseTest, RowsDoNotAffectEachOther) {
  const uint32_t cols = 1101, most = 257;
  Tensor in = Tensor::random(DType::f32, most * cols, 3);
  const Tensor weight = Tensor::random(DType::f32, cols, 2);
  RmsNormArgs args;
  args.in_outer_stride = cols;
  args.weight = reinterpret_cast<const float*>(weight.data());
  args.cols = cols;
  Tensor alone(DType::bf16, most * cols);
  args.outer = 1;
  for (uint32_t r = 0; r < most; ++r) {
    args.in = in.f32() + r * cols;
    args.out = {DType::bf16, static_cast<uint16_t*>(alone.data()) + r * cols, cols};
    run(table(), table().rms_norm, args);
  }
  args.in = in.f32();
  for (const uint32_t rows : {2u, 7u, 64u, 257u}) {
    Tensor batch(DType::bf16, rows * cols);
    args.outer = rows;
    args.out = batch.out(cols);
    run(table(), table().rms_norm, args, 2);
    EXPECT_TRUE(same_bits(alone, 0, batch, 0, rows * cols)) << rows;
  }
}

TEST_P(ElementwiseTest, RopeBothLayouts) {
  for (const uint32_t rope_dim : {2u, 6u, 32u, 50u, 64u, 128u}) {
    for (const RopeLayout layout : {RopeLayout::half_split, RopeLayout::interleaved}) {
      const uint32_t rows = 3, heads = 2, half = rope_dim / 2;
      const size_t head_stride = rope_dim + 5, row_stride = heads * head_stride + 1;
      Tensor x = Tensor::random(DType::f32, rows * row_stride, 4);
      const Tensor before = x;
      Tensor angles(DType::f32, rows * rope_dim);
      for (uint32_t r = 0; r < rows; ++r) {
        for (uint32_t i = 0; i < half; ++i) {
          angles.set(r * rope_dim + i, std::cos(0.1f * static_cast<float>(r * 31 + i)));
          angles.set(r * rope_dim + half + i, std::sin(0.1f * static_cast<float>(r * 31 + i)));
        }
      }
      RopeArgs args;
      args.x = x.f32();
      args.row_stride = row_stride;
      args.head_stride = head_stride;
      args.cos_sin = angles.f32();
      args.rows = rows;
      args.heads = heads;
      args.rope_dim = rope_dim;
      args.layout = layout;
      run(table(), table().rope, args, 2);
      Tensor expected = before;
      for (uint32_t r = 0; r < rows; ++r) {
        for (uint32_t h = 0; h < heads; ++h) {
          for (uint32_t i = 0; i < half; ++i) {
            const size_t base = r * row_stride + h * head_stride;
            const bool split = layout == RopeLayout::half_split;
            const size_t first = base + (split ? i : 2 * i), second = base + (split ? i + half : 2 * i + 1);
            const float a = before.get(first), b = before.get(second);
            const float c = angles.get(r * rope_dim + i), s = angles.get(r * rope_dim + half + i);
            expected.set(first, a * c - b * s);
            expected.set(second, b * c + a * s);
          }
        }
      }
      EXPECT_TRUE(same_bits(expected, 0, x, 0, x.size())) << rope_dim;
    }
  }
}

struct CombineCase {
  uint32_t rows = 5, top_k = 3, hidden;
  Tensor slots, weights, shared;
  std::vector<double> exact_slots;

  explicit CombineCase(uint32_t cols)
      : hidden(cols),
        slots(Tensor::random(DType::f32, size_t{5} * 3 * cols, 11)),
        weights(Tensor::random(DType::f32, 5 * 3, 12)),
        shared(Tensor::random(DType::f32, size_t{5} * cols, 13)) {
    // An expert that is held elsewhere: its slot was never written.
    weights.set(4, 0.0f);
    for (uint32_t i = 0; i < cols; ++i) slots.set(size_t{4} * cols + i, kNan);
    for (size_t i = 0; i < slots.size(); ++i) {  // what grouped_down makes of one contribution
      exact_slots.push_back(std::nearbyint(static_cast<double>(weights.get(i / cols)) *
                                           static_cast<double>(slots.get(i)) * 0x1p30) *
                            0x1p-30);
    }
  }
  CombineArgs args(SumMode mode, DType dtype, void* out) {
    CombineArgs result;
    result.mode = mode;
    result.rows = rows;
    result.hidden = hidden;
    result.top_k = top_k;
    if (mode == SumMode::plain) {
      result.slots = slots.f32();
    } else {
      result.exact_slots = exact_slots.data();
    }
    result.weights = weights.f32();
    result.shared = shared.f32();
    result.out_dtype = dtype;
    result.out = out;
    return result;
  }
};

TEST_P(ElementwiseTest, CombinePlain) {
  for (const uint32_t hidden : {1u, 16u, 37u, 1500u}) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      CombineCase test(hidden);
      Tensor out(dtype, test.rows * hidden);
      run(table(), table().combine, test.args(SumMode::plain, dtype, out.data()), 2);
      if (dtype == DType::f32) {  // a float64 reader gets the same sums
        std::vector<double> wide(out.size());
        run(table(), table().combine, test.args(SumMode::plain, DType::f64, wide.data()));
        for (size_t i = 0; i < out.size(); ++i) ASSERT_EQ(wide[i], static_cast<double>(out.get(i)));
      }
      for (uint32_t r = 0; r < test.rows; ++r) {
        for (uint32_t i = 0; i < hidden; ++i) {
          double sum = test.shared.get(r * hidden + i), magnitude = std::fabs(sum);
          for (uint32_t k = 0; k < test.top_k; ++k) {
            if (r * test.top_k + k == 4) continue;
            const double product = static_cast<double>(test.weights.get(r * test.top_k + k)) *
                                   static_cast<double>(test.slots.get((r * test.top_k + k) * hidden + i));
            sum += product;
            magnitude += std::fabs(product);
          }
          // bf16 rounds the experts' part, the shared part and their sum.
          const double shared = test.shared.get(r * hidden + i);
          const double parts =
              dtype == DType::f32 ? 0 : rounding(dtype, shared) + rounding(dtype, sum - shared);
          ASSERT_NEAR(out.get(r * hidden + i), sum,
                      8 * 0x1p-24 * magnitude + parts + 1.01 * rounding(dtype, sum));
        }
      }
    }
  }
}

// Whether the experts' part and the shared part meet in combine or on attention changes no bit, in any dtype.
TEST_P(ElementwiseTest, PartsMeetAnywhere) {
  for (const uint32_t hidden : {1u, 37u, 1500u}) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      CombineCase test(hidden);
      const size_t values = size_t{test.rows} * hidden;
      Tensor both(dtype, values), experts(dtype, values), shared(dtype, values);
      run(table(), table().combine, test.args(SumMode::plain, dtype, both.data()));
      CombineArgs part = test.args(SumMode::plain, dtype, experts.data());
      part.shared = nullptr;
      run(table(), table().combine, part);
      part = test.args(SumMode::plain, dtype, shared.data());
      part.top_k = 0;
      part.slots = part.weights = nullptr;
      run(table(), table().combine, part);
      Tensor x = Tensor::random(DType::f32, values, 9), y = x;
      ResidualAddArgs add;
      add.rows = test.rows;
      add.cols = hidden;
      add.dtype = dtype;
      add.multiplier = 0.22f;
      add.x = x.f32();
      add.first = both.data();
      run(table(), table().residual_add, add);
      add.x = y.f32();
      add.first = experts.data();
      add.second = shared.data();
      run(table(), table().residual_add, add);
      for (size_t i = 0; i < values; ++i) ASSERT_EQ(x.get(i), y.get(i)) << dtype_name(dtype) << i;
    }
  }
}

// On the grid the sum is exact: the kernel gives the very float64 that any order of addition gives, and sums
// of parts add up to the sum of all.
TEST_P(ElementwiseTest, CombineDeterministicIsExactInAnyOrder) {
  for (const uint32_t hidden : {1u, 37u, 1500u}) {
    CombineCase test(hidden);
    const size_t values = size_t{test.rows} * hidden;
    std::vector<double> out(values), shared_only(values), experts_only(values);
    run(table(), table().combine, test.args(SumMode::deterministic, DType::f64, out.data()), 2);
    CombineArgs part = test.args(SumMode::deterministic, DType::f64, shared_only.data());
    part.top_k = 0;
    part.exact_slots = nullptr;
    part.weights = nullptr;
    run(table(), table().combine, part);
    part = test.args(SumMode::deterministic, DType::f64, experts_only.data());
    part.shared = nullptr;
    run(table(), table().combine, part);
    for (uint32_t r = 0; r < test.rows; ++r) {
      for (uint32_t i = 0; i < hidden; ++i) {
        double sum = 0;
        for (uint32_t k = test.top_k; k-- > 0;) {
          if (r * test.top_k + k == 4) continue;
          sum += test.exact_slots[(r * test.top_k + k) * hidden + i];
        }
        sum += std::nearbyint(static_cast<double>(test.shared.get(r * hidden + i)) * 0x1p30) * 0x1p-30;
        const size_t at = r * hidden + i;
        ASSERT_EQ(out[at], sum);
        ASSERT_EQ(out[at], shared_only[at] + experts_only[at]);
      }
    }
  }
}

TEST_P(ElementwiseTest, ResidualAdd) {
  const uint32_t rows = 3, cols = 37;
  const Tensor x = Tensor::random(DType::f32, rows * cols, 1);
  const Tensor a = Tensor::random(DType::f32, rows * cols, 2), b = Tensor::random(DType::f32, rows * cols, 3);
  for (const DType dtype : {DType::f32, DType::bf16, DType::f64}) {
    for (const bool two : {false, true}) {
      Tensor out = x, first(dtype == DType::bf16 ? dtype : DType::f32, rows * cols), second = first;
      std::vector<double> first64(rows * cols), second64(rows * cols);
      for (size_t i = 0; i < x.size(); ++i) {
        first.set(i, a.get(i));
        second.set(i, b.get(i));
        first64[i] = dtype == DType::f64 ? a.get(i) * 1.0000001 : first.get(i);
        second64[i] = second.get(i);
      }
      ResidualAddArgs args;
      args.x = out.f32();
      args.rows = rows;
      args.cols = cols;
      args.dtype = dtype;
      args.first = dtype == DType::f64 ? first64.data() : first.data();
      args.second = !two ? nullptr : dtype == DType::f64 ? second64.data() : second.data();
      args.multiplier = 0.22f;
      run(table(), table().residual_add, args, 2);
      for (size_t i = 0; i < x.size(); ++i) {
        float sum = static_cast<float>(two ? first64[i] + second64[i] : first64[i]);
        if (two && dtype == DType::bf16) sum = to_float(to_bf16(sum));
        ASSERT_EQ(out.get(i), x.get(i) + 0.22f * sum) << dtype_name(dtype) << two << i;
      }
    }
  }
}

// Rounding to bf16 is that of base/bf16.h in every bit, special values included.
TEST_P(ElementwiseTest, Convert) {
  const uint32_t rows = 4, cols = 45;
  Tensor in = Tensor::random(DType::f32, rows * (cols + 1), 5);
  const float special[] = {kNan,    kInfinity, -kInfinity, 1e-39f,      -1e-40f,
                           3.4e38f, 0.0f,      -0.0f,      1.00390625f, 1.01171875f};
  for (size_t i = 0; i < std::size(special); ++i) in.set(i * 3, special[i]);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    Tensor out(dtype, rows * (cols + 2), 4.0f);
    ConvertArgs args;
    args.in = in.f32();
    args.in_stride = cols + 1;
    args.out = out.out(cols + 2);
    args.rows = rows;
    args.cols = cols;
    run(table(), table().convert, args, 2);
    Tensor expected(dtype, rows * (cols + 2), 4.0f);
    for (uint32_t r = 0; r < rows; ++r) {
      for (uint32_t c = 0; c < cols; ++c) expected.set(r * (cols + 2) + c, in.get(r * (cols + 1) + c));
    }
    EXPECT_TRUE(same_bits(expected, 0, out, 0, out.size()));
  }
}

TANDEM_EVERY_TABLE(ElementwiseTest);

TEST(KernelTableTest, NamesAndNumericsDiffer) {
  const auto tables = runnable_kernel_tables();
  ASSERT_FALSE(tables.empty());
  EXPECT_EQ(tables.back()->name, "scalar");
  for (size_t i = 0; i < tables.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      EXPECT_NE(tables[i]->name, tables[j]->name);
      EXPECT_NE(tables[i]->numerics_id, tables[j]->numerics_id);
    }
  }
}

TEST(KernelTableTest, EnvironmentChooses) {
  const char* before = std::getenv("TANDEM_ISA");
  const std::string saved = before == nullptr ? "" : before;
  for (const KernelTable* table : runnable_kernel_tables()) {
    setenv("TANDEM_ISA", std::string(table->name).c_str(), 1);
    const auto chosen = choose_kernel_table();
    ASSERT_TRUE(chosen.has_value());
    EXPECT_EQ(*chosen, table);
  }
  setenv("TANDEM_ISA", "sse9", 1);
  const auto refused = choose_kernel_table();
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::invalid_argument);
  EXPECT_NE(refused.error().message.find("sse9"), std::string::npos);
  EXPECT_NE(refused.error().message.find("scalar"), std::string::npos);
  unsetenv("TANDEM_ISA");
  EXPECT_EQ(choose_kernel_table().value(), runnable_kernel_tables().front());
  if (before != nullptr) setenv("TANDEM_ISA", saved.c_str(), 1);
}

}  // namespace
}  // namespace tandem::kernel_testing
