// Biases of experts and scaled_swiglu on every table.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

#include "kernels/testing.h"

namespace tandem::kernel_testing {
namespace {

class GroupedBiasTest : public EveryTable {};

constexpr uint32_t kRows = 27;

std::vector<uint32_t> reversed() {
  std::vector<uint32_t> slots(kRows);
  std::iota(slots.rbegin(), slots.rend(), 0u);
  return slots;
}

// Against float64: gates on both sides of the limit, linear factors beyond it on either side.
TEST_P(GroupedBiasTest, ScaledSwigluAgreesWithFloat64) {
  const std::vector<uint32_t> slots = reversed();
  for (const auto& [hidden, intermediate] :
       {std::pair{64u, 16u}, std::pair{37u, 41u}, std::pair{130u, 192u}}) {
    for (const PackFormat format : {PackFormat::f32, PackFormat::bf16}) {
      SCOPED_TRACE(::testing::Message() << hidden << " x " << intermediate);
      const DType dtype = activation_dtype(format);
      const Tensor source = Tensor::random(dtype, size_t{2} * intermediate * hidden, 51, 0.3f);
      const TestWeight weight =
          pack(table(), format, PackArrangement::gate_up, 2 * intermediate, hidden, source);
      const Tensor in = Tensor::random(dtype, size_t{kRows} * hidden, 52);
      const Tensor bias = Tensor::random(DType::f32, size_t{2} * intermediate, 53, 2.0f);
      constexpr float kLimit = 1.5f, kAlpha = 1.702f;
      ExpertGroup group{&weight.weight, nullptr, slots.data(), slots.data(), kRows};
      group.gate_up_bias = reinterpret_cast<const float*>(bias.data());
      Tensor out(dtype, size_t{kRows} * intermediate, kNan);
      GroupedGateUpArgs args;
      args.groups = {&group, 1};
      args.kind = MlpKind::scaled_swiglu;
      args.limit = kLimit;
      args.alpha = kAlpha;
      args.in = in.view(hidden);
      args.intermediate = out.out(intermediate);
      run(table(), table().grouped_gate_up, args, 2);
      uint32_t clipped = 0;
      for (uint32_t r = 0; r < kRows; ++r) {
        for (uint32_t o = 0; o < intermediate; ++o) {
          const auto product = [&](uint32_t row, double& error) {
            double sum = bias.get(row), magnitude = std::fabs(sum);
            for (uint32_t c = 0; c < hidden; ++c) {
              const double each = static_cast<double>(source.get(size_t{row} * hidden + c)) *
                                  static_cast<double>(in.get(size_t{r} * hidden + c));
              sum += each;
              magnitude += std::fabs(each);
            }
            error = (hidden + 3) * 0x1p-24 * magnitude;
            return sum;
          };
          double gate_error, up_error;
          const double raw_gate = product(o, gate_error), raw_up = product(o + intermediate, up_error);
          const double limit = kLimit, alpha = kAlpha;
          const double gate = std::min(raw_gate, limit), up = std::clamp(raw_up, -limit, limit) + 1;
          clipped += raw_gate > limit || raw_up < -limit;
          const double glu = gate / (1 + std::exp(-alpha * gate));
          // |d glu / d gate| < 1.1 for any alpha.
          const double glu_error = 1.1 * gate_error + 10 * 0x1p-24 * (std::fabs(glu) + std::fabs(gate));
          const double bound = glu_error * std::fabs(up) +
                               (std::fabs(glu) + glu_error) * (up_error + 0x1p-22) +
                               2 * rounding(dtype, glu * up) + 1e-30;
          ASSERT_NEAR(out.get(size_t{r} * intermediate + o), glu * up, bound) << "row " << r << " of " << o;
        }
      }
      EXPECT_GT(clipped, 10u);
    }
  }
}

// Float32 sums: the bias is what a result has more.
TEST_P(GroupedBiasTest, DownBiasIsAddedOnce) {
  const std::vector<uint32_t> slots = reversed();
  constexpr uint32_t kHidden = 75, kIntermediate = 43, kBlock = 8;
  for (const PackFormat format : {PackFormat::f32, PackFormat::bf16}) {
    const DType dtype = activation_dtype(format);
    const Tensor source = Tensor::random(dtype, size_t{kHidden} * kIntermediate, 61);
    const TestWeight weight = pack(table(), format, PackArrangement::plain, kHidden, kIntermediate, source);
    const Tensor in = Tensor::random(dtype, size_t{kRows} * kIntermediate, 62);
    const Tensor bias = Tensor::random(DType::f32, kHidden, 63);
    const Tensor weights = Tensor::random(DType::f32, kRows, 64);
    Tensor plain[2] = {Tensor(DType::f32, size_t{kRows} * kHidden),
                       Tensor(DType::f32, size_t{kRows} * kHidden)};
    std::vector<double> exact[2] = {std::vector<double>(size_t{kRows} * kHidden),
                                    std::vector<double>(size_t{kRows} * kHidden)};
    for (const int with : {0, 1}) {
      ExpertGroup group{nullptr, &weight.weight, slots.data(), slots.data(), kRows};
      if (with == 1) group.down_bias = reinterpret_cast<const float*>(bias.data());
      GroupedDownArgs args;
      args.groups = {&group, 1};
      args.intermediate = in.view(kIntermediate);
      args.out = plain[with].f32();
      args.out_stride = kHidden;
      run(table(), table().grouped_down, args, 2);
      args.contribution_cols = kBlock;
      args.weights = reinterpret_cast<const float*>(weights.data());
      args.exact_out = exact[with].data();
      run(table(), table().grouped_down, args, 2);
    }
    for (size_t i = 0; i < exact[0].size(); ++i) {
      const float added = bias.get(i % kHidden);
      ASSERT_EQ(plain[1].get(i), plain[0].get(i) + added);
      const double weighted = static_cast<double>(weights.get(i / kHidden)) * static_cast<double>(added);
      ASSERT_EQ(exact[1][i], exact[0][i] + std::nearbyint(weighted * 0x1p30) * 0x1p-30);
    }
  }
}

TANDEM_EVERY_TABLE(GroupedBiasTest);

}  // namespace
}  // namespace tandem::kernel_testing
