#include "moe/shared_gate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include "base/bf16.h"
#include "moe/moe_block_testing.h"

namespace tandem {
namespace {

using namespace moe_testing;

constexpr uint32_t kWidth = 37;  // no multiple of any vector

struct Rows {
  Rows() {
    std::mt19937 random(5);
    std::normal_distribution<float> normal(0, 0.5f);
    for (std::vector<float>* values : {&gate, &rows, &outputs}) {
      values->resize(values == &gate ? kWidth : size_t{kCount} * kWidth);
      for (float& value : *values) value = normal(random);
    }
  }
  static constexpr uint32_t kCount = 5;

  double share(const std::vector<float>& values, size_t row) const {
    double sum = 0;
    for (size_t i = 0; i < kWidth; ++i)
      sum += static_cast<double>(values[row * kWidth + i]) * static_cast<double>(gate[i]);
    return 1 / (1 + std::exp(-sum));
  }
  // `values`: what the rows of `in` stand for.
  void expect_shares(const ActivationView& in, const std::vector<float>& values) const {
    ThreadPool pool(2);
    std::vector<float> out = outputs;
    const std::vector<uint32_t> index = {3, 0, 4};
    gate_rows(gate, index, in, pool, out.data());
    for (size_t row = 0; row < kCount; ++row) {
      const bool named = std::ranges::find(index, row) != index.end();
      for (size_t i = 0; i < kWidth; ++i) {
        const double was = outputs[row * kWidth + i];
        ASSERT_NEAR(out[row * kWidth + i], named ? was * share(values, row) : was, 1e-6) << row << " " << i;
      }
    }
  }

  std::vector<float> gate, rows, outputs;
};

TEST(SharedGate, EqualsTheFormula) {
  const Rows given;
  given.expect_shares({DType::f32, given.rows.data(), kWidth}, given.rows);
}

TEST(SharedGate, RowsOfBf16AndOfInt8) {
  const Rows given;
  std::vector<bf16> narrow;
  std::vector<float> rounded;
  for (const float value : given.rows) {
    narrow.push_back(to_bf16(value));
    rounded.push_back(to_float(narrow.back()));
  }
  given.expect_shares({DType::bf16, narrow.data(), kWidth}, rounded);

  std::vector<int8_t> codes;
  std::vector<float> scales, decoded;
  for (size_t row = 0; row < Rows::kCount; ++row) {
    scales.push_back(0.01f * static_cast<float>(row + 1));
    for (size_t i = 0; i < kWidth; ++i) {
      codes.push_back(static_cast<int8_t>(static_cast<int>(row * 31 + i * 17) % 255 - 127));
      decoded.push_back(scales.back() * static_cast<float>(codes.back()));
    }
  }
  given.expect_shares({DType::i8, codes.data(), kWidth, ActivationFormat::int8, scales.data(), 1}, decoded);
}

// A layer whose shared expert has a gate.
void add_gate(Layer& layer) {
  layer.weights.shared_gate = layer.random_matrix(1, kHidden);
  layer.gates_shared_expert = true;
}

TEST(SharedGate, OfABlockEqualsTheFormula) {
  BlockUnderTest setup(true, true, SumMode::plain, 2.5f, add_gate), without(true, false, SumMode::plain);
  const auto out = setup.run<float>(0, kRows), routed = without.run<float>(0, kRows);
  for (uint32_t row = 0; row < kRows; ++row) {
    const float* x = setup.layer.input.data() + size_t{row} * kHidden;
    const double logit = std::inner_product(x, x + kHidden, setup.layer.weights.shared_gate.begin(), 0.0);
    const std::vector<double> shared = setup.layer.reference_mlp(setup.layer.shared, x);
    for (uint32_t o = 0; o < kHidden; ++o) {
      const size_t at = size_t{row} * kHidden + o;
      ASSERT_NEAR(out[at], routed[at] + shared[o] / (1 + std::exp(-logit)), 2e-4) << row << " " << o;
    }
  }
}

// With the experts, on attention, and by the rank that adds them for some of a part's rows.
TEST(SharedGate, EveryPlacementGivesTheSameBits) {
  BlockUnderTest colocated(true, true, SumMode::deterministic, 2.5f, add_gate);
  const auto want = colocated.run<double>(0, kRows);
  BlockUnderTest apart(true, false, SumMode::deterministic, 2.5f, add_gate);
  auto got = apart.run<double>(0, kRows);
  const auto shared = apart.run_shared<double>();
  for (size_t i = 0; i < got.size(); ++i) got[i] += shared[i];
  EXPECT_EQ(got, want);

  BlockUnderTest part(false, true, SumMode::deterministic, 2.5f, add_gate);
  part.route();
  std::vector<double> sum(want.size(), 0.0);
  for (const uint8_t parity : {0, 1}) {
    std::vector<uint8_t> mine(kRows);
    std::vector<float> weights = part.weights;
    for (uint32_t row = 0; row < kRows; ++row) {
      mine[row] = row % 2 == parity ? 1 : 0;
      if (mine[row] == 0) std::fill_n(weights.begin() + row * kTopK, kTopK, 0.0f);
    }
    std::vector<double> out(want.size());
    MoeRequest request;
    request.layer = 1;
    request.rows = kRows;
    request.in = part.in();
    request.routing = RoutingView{part.ids, weights, kTopK};
    request.out = {reinterpret_cast<std::byte*>(out.data()), out.size() * sizeof(double), MemorySpace::host};
    request.partial = true;
    request.shared_rows = mine;
    const Status status = part.block->run(request);
    ASSERT_TRUE(status.has_value()) << status.error().message;
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += out[i];
  }
  EXPECT_EQ(sum, want);
}

TEST(SharedGate, OfAnotherWidthIsRefused) {
  ThreadPool pool(1);
  KernelRunner runner = *KernelRunner::create(**choose_kernel_table(), pool);
  Layer layer(runner.table());
  layer.gates_shared_expert = true;
  const MoeLayerWeights* layers[] = {nullptr, &layer.weights};
  MoeBlockOptions options;
  options.compute_dtype = options.reply_dtype = DType::f32;
  const auto block = MoeBlock::create(layer.shape(), layers, options, runner);
  ASSERT_FALSE(block.has_value());
  EXPECT_EQ(block.error().message, "layer 1: a gate of 0 values for the shared expert of a row of 72");
}

}  // namespace
}  // namespace tandem
