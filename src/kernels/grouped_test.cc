// grouped_gate_up and grouped_down on every table: against float64, and with bits that do not depend on the
// grouping.
#include <algorithm>
#include <numeric>

#include "kernels/testing.h"

namespace tandem::kernel_testing {
namespace {

class GroupedTest : public EveryTable {};

struct Expert {
  Tensor gate_up_source, down_source;  // rounded to the compute dtype
  TestWeight gate_up, down;
};

Expert make_expert(const KernelTable& table, PackFormat format, uint32_t hidden, uint32_t intermediate,
                   uint32_t seed) {
  const DType dtype = activation_dtype(format);
  const float scale = 1.0f / std::sqrt(static_cast<float>(hidden));
  Expert expert{Tensor::random(dtype, size_t{2} * intermediate * hidden, seed, scale),
                Tensor::random(dtype, size_t{hidden} * intermediate, seed + 1),
                {},
                {}};
  expert.gate_up =
      pack(table, format, PackArrangement::gate_up, 2 * intermediate, hidden, expert.gate_up_source);
  expert.down = pack(table, format, PackArrangement::plain, hidden, intermediate, expert.down_source);
  return expert;
}

// Rows of each expert, chosen at random; slots in shuffled order, so that nothing depends on their order.
struct Assignment {
  std::vector<std::vector<uint32_t>> rows, slots;
  uint32_t total = 0;
};

Assignment assign(std::span<const uint32_t> counts, uint32_t rows, uint32_t seed) {
  std::mt19937 generator(seed);
  Assignment result;
  result.total = std::accumulate(counts.begin(), counts.end(), 0u);
  std::vector<uint32_t> slots(result.total);
  std::iota(slots.begin(), slots.end(), 0u);
  std::shuffle(slots.begin(), slots.end(), generator);
  uint32_t next = 0;
  for (const uint32_t count : counts) {
    result.rows.emplace_back();
    result.slots.emplace_back();
    for (uint32_t i = 0; i < count; ++i) {
      result.rows.back().push_back(generator() % rows);
      result.slots.back().push_back(slots[next++]);
    }
  }
  return result;
}

std::vector<ExpertGroup> groups_of(const std::vector<Expert>& experts, const Assignment& assignment) {
  std::vector<ExpertGroup> groups;
  for (size_t e = 0; e < experts.size(); ++e) {
    groups.push_back({&experts[e].gate_up.weight, &experts[e].down.weight, assignment.rows[e].data(),
                      assignment.slots[e].data(), static_cast<uint32_t>(assignment.rows[e].size())});
  }
  return groups;
}

TEST_P(GroupedTest, AgreesWithFloat64) {
  struct Shape {
    uint32_t hidden, intermediate;
  };
  for (const Shape shape : {Shape{64, 16}, Shape{37, 41}, Shape{130, 192}}) {
    for (const PackFormat format : {PackFormat::f32, PackFormat::bf16}) {
      SCOPED_TRACE(::testing::Message() << "hidden " << shape.hidden << " intermediate " << shape.intermediate
                                        << " format " << static_cast<int>(format));
      const DType dtype = activation_dtype(format);
      const uint32_t rows = 30;
      const uint32_t counts[] = {0, 1, 7, 0, 19};
      std::vector<Expert> experts;
      for (uint32_t e = 0; e < 5; ++e) {
        experts.push_back(make_expert(table(), format, shape.hidden, shape.intermediate, 100 + 2 * e));
      }
      const Assignment assignment = assign(counts, rows, 7);
      const std::vector<ExpertGroup> groups = groups_of(experts, assignment);
      const size_t in_stride = shape.hidden + 1, mid_stride = shape.intermediate + 3,
                   out_stride = shape.hidden + 2;
      Tensor in(dtype, rows * in_stride, kNan);
      const Tensor values = Tensor::random(dtype, size_t{rows} * shape.hidden, 8);
      for (uint32_t r = 0; r < rows; ++r) {
        for (uint32_t c = 0; c < shape.hidden; ++c)
          in.set(r * in_stride + c, values.get(r * shape.hidden + c));
      }
      Tensor middle(dtype, assignment.total * mid_stride, kNan);
      GroupedGateUpArgs up;
      up.groups = groups;
      up.in = in.view(in_stride);
      up.intermediate = middle.out(mid_stride);
      run(table(), table().grouped_gate_up, up, 2);
      Tensor out(DType::f32, assignment.total * out_stride, 5.0f);
      GroupedDownArgs down;
      down.groups = groups;
      down.intermediate = middle.view(mid_stride);
      down.out = out.f32();
      down.out_stride = out_stride;
      run(table(), table().grouped_down, down, 2);

      for (size_t e = 0; e < experts.size(); ++e) {
        for (size_t i = 0; i < assignment.rows[e].size(); ++i) {
          const size_t row = assignment.rows[e][i], slot = assignment.slots[e][i];
          const auto dot = [&](size_t weight_row, double& magnitude) {
            double sum = 0;
            magnitude = 0;
            for (uint32_t c = 0; c < shape.hidden; ++c) {
              const double product =
                  static_cast<double>(experts[e].gate_up_source.get(weight_row * shape.hidden + c)) *
                  static_cast<double>(in.get(row * in_stride + c));
              sum += product;
              magnitude += std::fabs(product);
            }
            return sum;
          };
          for (uint32_t o = 0; o < shape.intermediate; ++o) {
            double gate_magnitude, up_magnitude;
            const double gate = dot(o, gate_magnitude);
            const double linear = dot(o + shape.intermediate, up_magnitude);
            const double silu = gate / (1 + std::exp(-gate));
            // |d silu / d gate| <= 1.1; e^x and the division cost a few units in the last place of silu.
            const double unit = 0x1p-24;
            const double gate_error = (shape.hidden + 2) * unit * gate_magnitude;
            const double silu_error = 1.1 * gate_error + 8 * unit * std::fabs(silu);
            const double bound = silu_error * std::fabs(linear) +
                                 (std::fabs(silu) + silu_error) * (shape.hidden + 2) * unit * up_magnitude +
                                 2 * rounding(dtype, silu * linear) + 1e-30;
            ASSERT_NEAR(middle.get(slot * mid_stride + o), silu * linear, bound)
                << "expert " << e << " row " << row;
          }
          for (uint32_t o = 0; o < shape.hidden; ++o) {
            double sum = 0, magnitude = 0;
            for (uint32_t c = 0; c < shape.intermediate; ++c) {
              const double product =
                  static_cast<double>(experts[e].down_source.get(o * shape.intermediate + c)) *
                  static_cast<double>(middle.get(slot * mid_stride + c));
              sum += product;
              magnitude += std::fabs(product);
            }
            ASSERT_NEAR(out.get(slot * out_stride + o), sum,
                        (shape.intermediate + 2) * 0x1p-24 * magnitude + rounding(DType::f32, sum));
          }
          ASSERT_EQ(out.get(slot * out_stride + shape.hidden), 5.0f);  // beside the row
          ASSERT_TRUE(std::isnan(middle.get(slot * mid_stride + shape.intermediate)));
        }
      }
    }
  }
}

// A row's result is the same alone and among any others, on any place of a tile, for 1 and 2 threads.
TEST_P(GroupedTest, BitsDoNotDependOnGroupingOrThreads) {
  const uint32_t hidden = 600, intermediate = 48, most = 257;
  for (const PackFormat format : {PackFormat::f32, PackFormat::bf16}) {
    const DType dtype = activation_dtype(format);
    std::vector<Expert> experts;
    experts.push_back(make_expert(table(), format, hidden, intermediate, 1));
    const Tensor in = Tensor::random(dtype, size_t{most} * hidden, 9, 3.0f);
    std::vector<uint32_t> identity(most);
    std::iota(identity.begin(), identity.end(), 0u);
    const auto run_rows = [&](uint32_t begin, uint32_t count, Tensor& middle, Tensor& out, int threads) {
      const ExpertGroup group{&experts[0].gate_up.weight, &experts[0].down.weight, identity.data() + begin,
                              identity.data() + begin, count};
      GroupedGateUpArgs up;
      up.groups = {&group, 1};
      up.in = in.view(hidden);
      up.intermediate = middle.out(intermediate);
      run(table(), table().grouped_gate_up, up, threads);
      GroupedDownArgs down;
      down.groups = {&group, 1};
      down.intermediate = middle.view(intermediate);
      down.out = out.f32();
      down.out_stride = hidden;
      run(table(), table().grouped_down, down, threads);
    };
    Tensor middle_alone(dtype, size_t{most} * intermediate), out_alone(DType::f32, size_t{most} * hidden);
    for (uint32_t r = 0; r < most; ++r) run_rows(r, 1, middle_alone, out_alone, 1);
    for (const uint32_t rows : {1u, 2u, 7u, 16u, 64u, 257u}) {
      for (const int threads : {1, 2}) {
        Tensor middle(dtype, size_t{most} * intermediate), out(DType::f32, size_t{most} * hidden);
        run_rows(0, rows, middle, out, threads);
        EXPECT_TRUE(same_bits(middle_alone, 0, middle, 0, size_t{rows} * intermediate))
            << rows << " " << threads;
        EXPECT_TRUE(same_bits(out_alone, 0, out, 0, size_t{rows} * hidden)) << rows << " " << threads;
      }
    }
  }
}

// Many experts get longer tasks, few rows and more of them: the bits are those of one expert with all rows.
TEST_P(GroupedTest, BitsDoNotDependOnHowManyExpertsThereAre) {
  const uint32_t hidden = 600, intermediate = 48, many = 36;
  const DType dtype = activation_dtype(PackFormat::bf16);
  const Expert expert = make_expert(table(), PackFormat::bf16, hidden, intermediate, 1);
  for (const uint32_t each : {1u, 9u, 26u}) {
    const uint32_t rows = many * each;
    const Tensor in = Tensor::random(dtype, size_t{rows} * hidden, 9, 3.0f);
    std::vector<uint32_t> identity(rows);
    std::iota(identity.begin(), identity.end(), 0u);
    std::vector<Tensor> middles, outs;
    for (const uint32_t count : {rows, each}) {
      std::vector<ExpertGroup> groups;
      for (uint32_t begin = 0; begin < rows; begin += count) {
        groups.push_back({&expert.gate_up.weight, &expert.down.weight, identity.data() + begin,
                          identity.data() + begin, count});
      }
      Tensor& middle = middles.emplace_back(dtype, size_t{rows} * intermediate);
      GroupedGateUpArgs up;
      up.groups = groups;
      up.in = in.view(hidden);
      up.intermediate = middle.out(intermediate);
      run(table(), table().grouped_gate_up, up, 2);
      Tensor& out = outs.emplace_back(DType::f32, size_t{rows} * hidden);
      GroupedDownArgs down;
      down.groups = groups;
      down.intermediate = middle.view(intermediate);
      down.out = out.f32();
      down.out_stride = hidden;
      run(table(), table().grouped_down, down, 2);
    }
    EXPECT_TRUE(same_bits(middles[0], 0, middles[1], 0, size_t{rows} * intermediate)) << each;
    EXPECT_TRUE(same_bits(outs[0], 0, outs[1], 0, size_t{rows} * hidden)) << each;
  }
}

// Deterministic sums: a weight that is cut between contributions gives parts that add up to the bits of the
// whole, alone and among other rows; and the whole is what the plain kernel gives for each contribution,
// weighted and rounded to the grid. The last contribution may be shorter, and odd.
TEST_P(GroupedTest, ContributionsAddUpWhereverAWeightIsCut) {
  constexpr uint32_t kHidden = 75, kRows = 29, kBlock = 8;
  for (const uint32_t intermediate : {5u, 8u, 40u, 43u}) {
    for (const PackFormat format : {PackFormat::f32, PackFormat::bf16}) {
      SCOPED_TRACE(::testing::Message() << intermediate << " format " << static_cast<int>(format));
      const DType dtype = activation_dtype(format);
      const Tensor source = Tensor::random(dtype, size_t{kHidden} * intermediate, 3);
      const Tensor middle = Tensor::random(dtype, size_t{kRows} * intermediate, 4);
      const Tensor weights = Tensor::random(DType::f32, kRows, 5);
      std::vector<uint32_t> slots(kRows);
      std::iota(slots.rbegin(), slots.rend(), 0u);
      const auto cut = [&](uint32_t begin, uint32_t end) {
        Tensor part(dtype, size_t{kHidden} * (end - begin));
        for (uint32_t o = 0; o < kHidden; ++o) {
          for (uint32_t i = begin; i < end; ++i)
            part.set(size_t{o} * (end - begin) + i - begin, source.get(size_t{o} * intermediate + i));
        }
        return pack(table(), format, PackArrangement::plain, kHidden, end - begin, part);
      };
      const auto args_of = [&](const ExpertGroup& group, uint32_t begin) {
        GroupedDownArgs args;
        args.groups = {&group, 1};
        args.intermediate = middle.view(intermediate);
        args.intermediate.data = static_cast<const std::byte*>(middle.data()) + dtype_bytes(dtype, begin);
        args.out_stride = kHidden;
        return args;
      };
      const auto exact = [&](uint32_t begin, uint32_t end, uint32_t first, uint32_t count, int threads) {
        const TestWeight down = cut(begin, end);
        const ExpertGroup group{nullptr, &down.weight, slots.data() + first, slots.data() + first, count};
        std::vector<double> out(size_t{kRows} * kHidden, static_cast<double>(kNan));
        GroupedDownArgs args = args_of(group, begin);
        args.contribution_cols = kBlock;
        args.weights = reinterpret_cast<const float*>(weights.data());
        args.exact_out = out.data();
        run(table(), table().grouped_down, args, threads);
        return out;
      };
      std::vector<double> wanted(size_t{kRows} * kHidden, 0.0);
      for (uint32_t begin = 0; begin < intermediate; begin += kBlock) {
        const TestWeight down = cut(begin, std::min(intermediate, begin + kBlock));
        const ExpertGroup group{nullptr, &down.weight, slots.data(), slots.data(), kRows};
        Tensor plain(DType::f32, wanted.size());
        GroupedDownArgs args = args_of(group, begin);
        args.out = plain.f32();
        run(table(), table().grouped_down, args);
        for (size_t i = 0; i < wanted.size(); ++i) {
          const double product =
              static_cast<double>(weights.get(i / kHidden)) * static_cast<double>(plain.get(i));
          wanted[i] += std::nearbyint(product * 0x1p30) * 0x1p-30;
        }
      }
      const std::vector<double> whole = exact(0, intermediate, 0, kRows, 2);
      ASSERT_EQ(whole, wanted);
      for (uint32_t at = kBlock; at < intermediate; at += kBlock) {
        std::vector<double> sum = exact(0, at, 0, kRows, 1);
        const std::vector<double> rest = exact(at, intermediate, 0, kRows, 2);
        for (size_t i = 0; i < sum.size(); ++i) sum[i] += rest[i];
        ASSERT_EQ(sum, whole) << "cut at " << at;
      }
      for (uint32_t row = 0; row < kRows; ++row) {
        const size_t from = size_t{slots[row]} * kHidden;
        const std::vector<double> alone = exact(0, intermediate, row, 1, 1);
        for (size_t i = from; i < from + kHidden; ++i) ASSERT_EQ(alone[i], whole[i]) << "row " << row;
      }
    }
  }
}

// Gates far beyond where e^x overflows or vanishes, and special values: silu must end where its limit is.
TEST_P(GroupedTest, ExtremeGates) {
  const float gates[] = {200.0f, -200.0f, 88.5f, -88.5f,    100.0f, -100.0f,
                         1e38f,  -1e38f,  0.0f,  kInfinity, kNan};
  const uint32_t rows = std::size(gates);
  // One column: the gate is x itself and the linear factor half of it.
  Tensor source(DType::f32, 2 * 16, 1.0f);
  for (uint32_t i = 16; i < 32; ++i) source.set(i, 0.5f);
  const TestWeight weight = pack(table(), PackFormat::f32, PackArrangement::gate_up, 32, 1, source);
  Tensor in(DType::f32, rows), out(DType::f32, rows * 16);
  std::vector<uint32_t> identity(rows);
  std::iota(identity.begin(), identity.end(), 0u);
  for (uint32_t r = 0; r < rows; ++r) in.set(r, gates[r]);
  const ExpertGroup group{&weight.weight, nullptr, identity.data(), identity.data(), rows};
  GroupedGateUpArgs args;
  args.groups = {&group, 1};
  args.in = in.view(1);
  args.intermediate = out.out(16);
  run(table(), table().grouped_gate_up, args);
  for (uint32_t r = 0; r < rows; ++r) {
    const double gate = gates[r], expected = gate / (1 + std::exp(-gate)) * (gate * 0.5);
    for (uint32_t i = 0; i < 16; ++i) {
      const float value = out.get(r * 16 + i);
      if (std::isnan(expected)) {
        EXPECT_TRUE(std::isnan(value)) << gate;
      } else if (std::fabs(expected) > 3.4e38) {
        EXPECT_EQ(value, kInfinity) << gate;
      } else {
        EXPECT_NEAR(value, expected, 1e-6 * std::fabs(expected) + 1e-34) << gate;
      }
    }
  }
}

// The gate is bounded above only, the linear factor on both sides; a limit that nothing reaches changes no
// bit.
TEST_P(GroupedTest, ClampedSwiglu) {
  const float values[] = {0.0f,   0.5f,   -0.5f, 9.99f,  10.0f, 10.01f,
                          -10.0f, -11.0f, 40.0f, -40.0f, 1e38f, kNan};
  const uint32_t rows = std::size(values),
                 intermediate = 19;  // a panel and a part of one
  // Gate x, linear factor from -0.8 x to 1 x.
  Tensor source(DType::f32, 2 * intermediate, 1.0f);
  for (uint32_t i = 0; i < intermediate; ++i)
    source.set(intermediate + i, -0.8f + 0.1f * static_cast<float>(i));
  for (const PackFormat format : {PackFormat::f32, PackFormat::bf16}) {
    const DType dtype = activation_dtype(format);
    Tensor rounded(dtype, 2 * intermediate);
    for (uint32_t i = 0; i < 2 * intermediate; ++i) rounded.set(i, source.get(i));
    const TestWeight weight = pack(table(), format, PackArrangement::gate_up, 2 * intermediate, 1, rounded);
    Tensor in(dtype, rows);
    for (uint32_t r = 0; r < rows; ++r) in.set(r, values[r]);
    std::vector<uint32_t> identity(rows);
    std::iota(identity.begin(), identity.end(), 0u);
    const ExpertGroup group{&weight.weight, nullptr, identity.data(), identity.data(), rows};
    const auto outputs = [&](MlpKind kind, float limit) {
      Tensor out(dtype, rows * intermediate);
      GroupedGateUpArgs args;
      args.groups = {&group, 1};
      args.kind = kind;
      args.limit = limit;
      args.in = in.view(1);
      args.intermediate = out.out(intermediate);
      run(table(), table().grouped_gate_up, args);
      return out;
    };
    const Tensor clamped = outputs(MlpKind::clamped_swiglu, 10.0f);
    for (uint32_t r = 0; r < rows; ++r) {
      for (uint32_t i = 0; i < intermediate; ++i) {
        const double x = in.get(r), factor = rounded.get(intermediate + i);
        const double gate = std::min(x, 10.0), up = std::clamp(x * factor, -10.0, 10.0);
        const double expected = gate / (1 + std::exp(-gate)) * up;
        const float value = clamped.get(r * intermediate + i);
        if (std::isnan(x)) {
          ASSERT_TRUE(std::isnan(value));
        } else {
          ASSERT_NEAR(value, expected, 2e-6 * std::fabs(expected) + 2 * rounding(dtype, expected) + 1e-30)
              << x << " and " << x * factor;
        }
      }
    }
    const Tensor plain = outputs(MlpKind::swiglu, 0.0f), wide = outputs(MlpKind::clamped_swiglu, kInfinity);
    for (uint32_t i = 0; i < rows * intermediate; ++i) {
      if (std::isnan(plain.get(i))) {
        ASSERT_TRUE(std::isnan(wide.get(i)));
      } else {
        ASSERT_EQ(wide.get(i), plain.get(i));
      }
    }
  }
}

TEST_P(GroupedTest, EmptyGroupsMakeNoTask) {
  std::vector<Expert> experts;
  experts.push_back(make_expert(table(), PackFormat::f32, 16, 16, 1));
  const uint32_t counts[] = {0};
  const Assignment assignment = assign(counts, 1, 1);
  const std::vector<ExpertGroup> groups = groups_of(experts, assignment);
  GroupedGateUpArgs up;
  up.groups = groups;
  GroupedDownArgs down;
  down.groups = groups;
  EXPECT_EQ(table().grouped_gate_up.tasks(up), 0u);
  EXPECT_EQ(table().grouped_down.tasks(down), 0u);
}

TANDEM_EVERY_TABLE(GroupedTest);

}  // namespace
}  // namespace tandem::kernel_testing
