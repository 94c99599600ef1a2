// Gate and shared experts on either side of the port: deterministic sums give the bits of the colocated run,
// a gate that moves alone changes no bit in any mode, and the routed scaling factor is applied once wherever
// they stand.
#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "model/model_test_support.h"

namespace tandem::test {
namespace {

struct Placement {
  bool gate_on_attention, shared_on_attention;
};
constexpr Placement kPlacements[] = {{false, false}, {false, true}, {true, false}, {true, true}};

std::string text(const Placement& placement) {
  return std::string("gate on ") + (placement.gate_on_attention ? "attention" : "ffn") + ", shared on " +
         (placement.shared_on_attention ? "attention" : "ffn");
}

class PlacementTest : public testing::TestWithParam<const char*> {
 protected:
  static OfflineOptions options(const Placement& placement, SumMode mode) {
    OfflineOptions out;
    out.gate_on_attention = placement.gate_on_attention;
    out.shared_on_attention = placement.shared_on_attention;
    out.sum_mode = mode;
    out.capacity = 24;
    out.sequences = 3;
    out.tokens_per_sequence = 32;
    return out;
  }
};

TEST_P(PlacementTest, DeterministicLogitsAreTheColocatedOnes) {
  for (const DType dtype : {DType::bf16, DType::f32}) {
    const TestModel model = load_fixture(GetParam(), dtype);
    const auto sequences = make_sequences(model.config.vocab_size, {1, 12, 30});
    const AllLogits colocated =
        run_steps(*model.model, options(kPlacements[0], SumMode::deterministic), chunked(sequences, 1));
    for (const Placement& placement : kPlacements) {
      const OfflineOptions split = options(placement, SumMode::deterministic);
      expect_same_bits(run_steps(*model.model, split, mixed(sequences, split.capacity, 5)), colocated,
                       text(placement));
    }
  }
}

TEST_P(PlacementTest, TheGateAloneChangesNoBitInAnyMode) {
  const TestModel model = load_fixture(GetParam(), DType::bf16);
  const auto sequences = make_sequences(model.config.vocab_size, {9, 12});
  for (const bool shared : {false, true}) {
    const auto run = [&](bool gate) {
      return run_steps(*model.model, options({gate, shared}, SumMode::plain), chunked(sequences, 7));
    };
    expect_same_bits(run(true), run(false), "gate on attention");
  }
}

// Root of the mean squared difference of all logits, as a share of the root of their mean square.
double relative_difference(const AllLogits& have, const AllLogits& want) {
  double difference = 0, size = 0;
  for (const auto& [row, logits] : want) {
    const std::vector<float>& other = have.at(row);
    for (size_t i = 0; i < logits.size(); ++i) {
      difference += std::pow(static_cast<double>(other[i]) - static_cast<double>(logits[i]), 2);
      size += std::pow(static_cast<double>(logits[i]), 2);
    }
  }
  return std::sqrt(difference / size);
}

// A quantised row has the same bits whatever it is computed with; the experts see other rows than without.
TEST_P(PlacementTest, QuantizedRowsDoNotDependOnBatching) {
  const TestModel model = load_fixture(GetParam(), DType::bf16);
  const auto sequences = make_sequences(model.config.vocab_size, {1, 12, 30});
  for (const bool shared : {false, true}) {
    OfflineOptions split = options({true, shared}, SumMode::plain);
    const AllLogits plain = run_steps(*model.model, split, chunked(sequences, 7));
    for (const ActivationFormat format :
         {ActivationFormat::fp8, ActivationFormat::mxfp8, ActivationFormat::int8}) {
      split.activation_format = format;
      const AllLogits alone = run_steps(*model.model, split, chunked(sequences, 1));
      expect_same_bits(run_steps(*model.model, split, mixed(sequences, split.capacity, 5)), alone,
                       std::string(activation_format_name(format)));
      EXPECT_NE(alone, plain) << "nothing was quantised";
      // 0.01 to 0.12 over these random models, where a rounding may move a row to other experts; rows without
      // their scales would be off by a multiple of the logits.
      EXPECT_LT(relative_difference(alone, plain), 0.2) << activation_format_name(format);
    }
  }
}

TEST(QuantizedActivations, NeedTheGateOnAttention) {
  const TestModel model = load_fixture("deepseek_v3", DType::bf16);
  OfflineOptions options;
  options.capacity = 4;
  options.tokens_per_sequence = 8;
  options.activation_format = ActivationFormat::fp8;
  const auto runner = OfflineRunner::create(*model.model, kernels(), options);
  ASSERT_FALSE(runner.has_value());
  EXPECT_NE(runner.error().message.find("fp8 activations where the router is"), std::string::npos)
      << runner.error().message;
}

INSTANTIATE_TEST_SUITE_P(Families, PlacementTest, testing::ValuesIn(kFamilies),
                         [](const auto& parameter) { return std::string(parameter.param); });

// Keeps the rows and the reply of the first request of one layer.
class ReplyRecorder final : public FfnPort {
 public:
  ReplyRecorder(FfnPort& inner, uint32_t hidden) : inner_(inner), hidden_(hidden) {}
  const FfnTraits& traits() const override { return inner_.traits(); }
  Result<Ticket> submit(const FfnRequest& request) override {
    Result<Ticket> ticket = inner_.submit(request);  // LocalFfn has computed when it returns
    if (ticket && in.empty()) {
      layer = request.layer;
      const size_t values = size_t{request.rows} * hidden_;
      in.assign(static_cast<const float*>(request.in.data),
                static_cast<const float*>(request.in.data) + values);
      out.assign(request.out.as<float>(), request.out.as<float>() + values);
    }
    return ticket;
  }
  size_t poll(std::span<Completion> completions) override { return inner_.poll(completions); }
  void cancel(Ticket ticket) override { inner_.cancel(ticket); }
  int wait_fd() const override { return inner_.wait_fd(); }
  Status health() const override { return inner_.health(); }

  LayerIndex layer = 0;
  std::vector<float> in, out;  // [rows, hidden]

 private:
  FfnPort& inner_;
  uint32_t hidden_;
};

struct Exchange {
  std::vector<float> in, reply;  // [rows, hidden] of the first MoE layer
  std::vector<float> shared;     // what the shared experts give for `in`; zeros without shared experts
};

Exchange first_exchange(const TestModel& model, const Placement& placement) {
  OfflineOptions options;
  options.gate_on_attention = placement.gate_on_attention;
  options.shared_on_attention = placement.shared_on_attention;
  options.capacity = 12;
  options.tokens_per_sequence = 12;
  ReplyRecorder* recorder = nullptr;
  options.wrap_port = [&](FfnPort& inner) {
    auto port = std::make_unique<ReplyRecorder>(inner, model.config.hidden_size);
    recorder = port.get();
    return port;
  };
  const auto runner = OfflineRunner::create(*model.model, kernels(), options).value();
  const auto sequences = make_sequences(model.config.vocab_size, {12});
  EXPECT_TRUE(runner->run(rows_of(sequences, 0, 0, 12)));
  Exchange exchange{recorder->in, recorder->out, std::vector<float>(recorder->in.size(), 0.0f)};
  if (model.config.shared_intermediate_size != 0) {
    MoeBlockOptions block_options;
    block_options.compute_dtype = block_options.reply_dtype = DType::f32;
    const auto layers = moe_layers(model.config, *model.weights);
    const auto block = MoeBlock::create(moe_shape(model.config), layers, block_options, kernels()).value();
    EXPECT_TRUE(block->run_shared(recorder->layer, 12,
                                  {DType::f32, exchange.in.data(), model.config.hidden_size},
                                  {reinterpret_cast<std::byte*>(exchange.shared.data()),
                                   exchange.shared.size() * sizeof(float), MemorySpace::host}));
  }
  return exchange;
}

class ScalingFactor : public testing::TestWithParam<const char*> {};

TEST_P(ScalingFactor, CountsOnceInTheRoutedPartAndNotInTheShared) {
  const TestModel plain =
      load_fixture(GetParam(), DType::f32, [](ModelConfig& c) { c.router.scaling_factor = 1.0f; });
  const TestModel scaled =
      load_fixture(GetParam(), DType::f32, [](ModelConfig& c) { c.router.scaling_factor = 2.5f; });
  const TestModel doubled =
      load_fixture(GetParam(), DType::f32, [](ModelConfig& c) { c.router.scaling_factor = 2.0f; });
  for (const Placement& placement : kPlacements) {
    const Exchange one = first_exchange(plain, placement);
    const Exchange factor = first_exchange(scaled, placement);
    const Exchange two = first_exchange(doubled, placement);
    ASSERT_EQ(one.in, factor.in);
    double largest = 0;
    for (size_t i = 0; i < one.reply.size(); ++i) {
      const double shared = placement.shared_on_attention ? 0.0 : one.shared[i];
      const double routed = one.reply[i] - shared;
      largest = std::max(largest, std::fabs(routed));
      ASSERT_NEAR(factor.reply[i] - shared, 2.5 * routed, 1e-5) << text(placement) << ", value " << i;
      // A power of two commutes with rounding: without a shared part in the sum it is exact.
      if (placement.shared_on_attention) {
        ASSERT_EQ(two.reply[i], 2.0f * one.reply[i]) << text(placement);
      }
    }
    EXPECT_GT(largest, 0.01);  // there is a routed part to scale
  }
}

INSTANTIATE_TEST_SUITE_P(Families, ScalingFactor, testing::Values("deepseek_v2", "deepseek_v3", "moonlight"),
                         [](const auto& parameter) { return std::string(parameter.param); });

}  // namespace
}  // namespace tandem::test
