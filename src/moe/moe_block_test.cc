#include "moe/moe_block.h"

#include "moe/local_ffn.h"
#include "moe/moe_block_testing.h"

namespace tandem {
namespace {

using namespace moe_testing;

// All rows of a block with router and shared expert, against the formula.
void expect_formula(BlockUnderTest& setup) {
  setup.route();
  const auto out = setup.run<float>(0, kRows);
  for (uint32_t row = 0; row < kRows; ++row) {
    const float* x = setup.layer.input.data() + size_t{row} * kHidden;
    std::vector<double> want = setup.layer.reference_mlp(setup.layer.shared, x);
    for (uint32_t k = 0; k < kTopK; ++k) {
      const auto expert =
          setup.layer.reference_mlp(setup.layer.experts[static_cast<size_t>(setup.ids[row * kTopK + k])], x);
      for (uint32_t o = 0; o < kHidden; ++o) want[o] += setup.weights[row * kTopK + k] * expert[o];
    }
    for (uint32_t o = 0; o < kHidden; ++o)
      ASSERT_NEAR(out[size_t{row} * kHidden + o], want[o], 2e-4) << row << " " << o;
  }
}

TEST(MoeBlock, EqualsTheFormulaInFloat64) {
  BlockUnderTest setup(true, true, SumMode::plain);
  expect_formula(setup);
}

TEST(MoeBlock, RowsHaveTheSameBitsAloneAndTogether) {
  for (SumMode mode : {SumMode::plain, SumMode::deterministic}) {
    BlockUnderTest setup(true, true, mode);
    for (uint32_t row = 0; row < kRows; ++row) {
      if (mode == SumMode::plain) {
        const auto all = setup.run<float>(0, kRows);
        const auto one = setup.run<float>(row, 1);
        ASSERT_TRUE(std::equal(one.begin(), one.end(), all.begin() + row * kHidden));
      } else {
        const auto all = setup.run<double>(0, kRows);
        const auto one = setup.run<double>(row, 1);
        ASSERT_TRUE(std::equal(one.begin(), one.end(), all.begin() + row * kHidden));
      }
    }
  }
}

TEST(MoeBlock, CountsItsRoutingAndOnlyThat) {
  BlockUnderTest gate_here(true, true, SumMode::plain);
  gate_here.run<float>(0, kRows);
  gate_here.run<float>(0, 1);
  EXPECT_EQ(gate_here.block->router_times().calls, 2u);
  EXPECT_GT(gate_here.block->router_times().nanoseconds, 0u);
  BlockUnderTest gate_elsewhere(false, true, SumMode::plain);
  gate_elsewhere.route();
  const uint64_t before = gate_elsewhere.block->router_times().calls;
  gate_elsewhere.run<float>(0, kRows, gate_elsewhere.routing());
  EXPECT_EQ(gate_elsewhere.block->router_times().calls, before);
}

TEST(MoeBlock, EveryPlacementGivesTheSameBitsWhenDeterministic) {
  BlockUnderTest colocated(true, true, SumMode::deterministic);
  const auto want = colocated.run<double>(0, kRows);
  for (bool gate_here : {true, false}) {
    for (bool shared_here : {true, false}) {
      BlockUnderTest setup(gate_here, shared_here, SumMode::deterministic);
      setup.route();
      auto got =
          setup.run<double>(0, kRows, gate_here ? RoutingRef(NoRouting{}) : RoutingRef(setup.routing()));
      if (!shared_here) {
        const auto shared = setup.run_shared<double>();
        for (size_t i = 0; i < got.size(); ++i) got[i] += shared[i];
      }
      EXPECT_EQ(got, want) << gate_here << shared_here;
    }
  }
}

TEST(MoeBlock, ScalingFactorTouchesTheRoutedPartOnce) {
  for (bool gate_here : {true, false}) {
    const auto routed = [&](float factor) {
      BlockUnderTest setup(gate_here, false, SumMode::plain, factor);
      setup.route();
      return setup.run<float>(0, kRows, gate_here ? RoutingRef(NoRouting{}) : RoutingRef(setup.routing()));
    };
    const auto one = routed(1.0f);
    const auto scaled = routed(2.0f);  // a power of two: exact
    for (size_t i = 0; i < one.size(); ++i) ASSERT_EQ(scaled[i], 2.0f * one[i]);
  }
}

// A rank's share of each expert: some hold whole experts, some slices, cut on granules of 8 at different
// places. The parts add up to the bits of the whole.
TEST(MoeBlock, AnySlicingGivesTheSameBitsWhenDeterministic) {
  BlockUnderTest all(false, false, SumMode::deterministic);
  all.route();
  const auto want = all.run<double>(0, kRows, all.routing());
  std::vector<double> sum(want.size(), 0.0);
  const uint32_t cuts[4] = {0, 8, 24, kIntermediate};
  for (uint32_t rank = 0; rank < 3; ++rank) {
    BlockUnderTest part(false, false, SumMode::deterministic);
    for (uint32_t e = 0; e < kExperts; ++e) {
      MlpWeights& mine = part.layer.weights.experts[e];
      if (e % 4 == 3) {
        if (e % 3 != rank) mine = {};
      } else {  // a rank's slices differ in size from expert to expert
        const uint32_t at = (rank + e) % 3;
        mine = part.layer.slice(part.runner.table(), part.layer.experts[e], cuts[at], cuts[at + 1]);
      }
    }
    const auto out = part.run<double>(0, kRows, all.routing());
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += out[i];
  }
  EXPECT_EQ(sum, want);
}

// Whichever call brings the rows, and for each layer on its own.
TEST(MoeBlock, BalancedRoutingGoesOnFromCallToCall) {
  BlockUnderTest setup(true, true, SumMode::plain);
  MoeBlockOptions options = setup.block->options();
  options.balanced_routing = true;
  const MoeLayerWeights* layers[] = {&setup.layer.weights, &setup.layer.weights};
  const auto block = MoeBlock::create(setup.layer.shape(), layers, options, setup.runner);
  ASSERT_TRUE(block.has_value()) << block.error().message;
  int32_t next[2] = {0, 0};
  for (const auto& [layer, rows] : {std::pair{1, 1u}, {0, 5u}, {1, 7u}, {0, 2u}, {1, kRows}}) {
    std::vector<int32_t> ids(size_t{rows} * kTopK);
    std::vector<float> weights(ids.size());
    const auto index = static_cast<LayerIndex>(layer);
    ASSERT_TRUE((*block)->route_rows(index, rows, setup.in(), ids, weights).has_value());
    for (const int32_t id : ids) {
      ASSERT_EQ(id, next[layer]);
      next[layer] = (next[layer] + 1) % static_cast<int32_t>(kExperts);
    }
  }
}

TEST(MoeBlock, AnExpertThatIsNoSliceIsRefusedByName) {
  BlockUnderTest setup(false, false, SumMode::plain);
  const auto create = [&](uint32_t begin, uint32_t end) {
    setup.layer.weights.experts[2] =
        setup.layer.slice(setup.runner.table(), setup.layer.experts[2], begin, end);
    const MoeLayerWeights* layers[] = {nullptr, &setup.layer.weights};
    const auto block = MoeBlock::create(setup.layer.shape(), layers, setup.block->options(), setup.runner);
    return block ? std::string() : block.error().message;
  };
  EXPECT_EQ(create(8, kIntermediate), "");
  EXPECT_NE(create(4, 16).find("layer 1: rows 4..16 are no slice of 40"), std::string::npos);
}

TEST(MoeBlock, RefusesRequestsThatDoNotFitByName) {
  BlockUnderTest setup(false, false, SumMode::plain);
  setup.route();
  std::vector<float> out(size_t{kRows} * kHidden);
  MoeRequest good;
  good.layer = 1;
  good.rows = kRows;
  good.in = setup.in();
  good.routing = setup.routing();
  good.out = {reinterpret_cast<std::byte*>(out.data()), out.size() * sizeof(float), MemorySpace::host};
  ASSERT_TRUE(setup.block->run(good).has_value());
  const auto message = [&](auto change) {
    MoeRequest request = good;
    change(request);
    const Status status = setup.block->run(request);
    return status ? std::string() : status.error().message;
  };
  EXPECT_NE(message([](auto& r) { r.layer = 0; }).find("layer 0"), std::string::npos);
  EXPECT_NE(message([](auto& r) { r.layer = 9; }).find("layer 9"), std::string::npos);
  EXPECT_NE(message([](auto& r) { r.routing = NoRouting{}; }).find("no routing"), std::string::npos);
  EXPECT_NE(message([](auto& r) { r.in.dtype = DType::bf16; }).find("bf16"), std::string::npos);
  EXPECT_NE(message([](auto& r) { r.out.bytes -= 1; }), "");
  EXPECT_NE(message([](auto& r) { r.rows -= 1; }), "");  // the routing has one row too many
  auto ids = setup.ids;
  ids[5] = kExperts;
  EXPECT_NE(message([&](auto& r) { r.routing = RoutingView{ids, setup.weights, kTopK}; }).find("expert id 8"),
            std::string::npos);

  BlockUnderTest routing_here(true, false, SumMode::plain);
  good.in = routing_here.in();
  EXPECT_NE(routing_here.block->run(good).error().message.find("the gate is on this side"),
            std::string::npos);
}

// Quantised rows and the same rows dequantised by hand give the same bits: they are used as they came, and
// rounded no further.
TEST(MoeBlock, QuantizedRowsAreUsedAsTheyCome) {
  for (const ActivationFormat format :
       {ActivationFormat::fp8, ActivationFormat::mxfp8, ActivationFormat::int8}) {
    BlockUnderTest plain(false, true, SumMode::plain);
    plain.route();
    const uint32_t scales_a_row = scale_cols(format, kHidden);
    std::vector<std::byte> values(size_t{kRows} * kHidden);
    std::vector<float> scales(size_t{kRows} * scales_a_row);
    QuantizeArgs quantize{plain.in(), format, values.data(), scales.data(), kRows, kHidden};
    plain.runner.run(plain.runner.table().quantize_rows, quantize);

    MoeBlockOptions options = plain.block->options();
    options.activation_format = format;
    const MoeLayerWeights* layers[] = {nullptr, &plain.layer.weights};
    auto block = MoeBlock::create(plain.layer.shape(), layers, options, plain.runner);
    ASSERT_TRUE(block.has_value()) << block.error().message;
    EXPECT_EQ(LocalFfn(**block).traits().activation_format, format);
    EXPECT_EQ(LocalFfn(**block).traits().activation_dtype, value_dtype(format, DType::f32));
    std::vector<float> got(size_t{kRows} * kHidden);
    MoeRequest request;
    request.layer = 1;
    request.rows = kRows;
    request.in = {
        value_dtype(format, DType::f32), values.data(), kHidden, format, scales.data(), scales_a_row};
    request.routing = plain.routing();
    request.out = {reinterpret_cast<std::byte*>(got.data()), got.size() * sizeof(float), MemorySpace::host};
    const Status status = (*block)->run(request);
    ASSERT_TRUE(status.has_value()) << status.error().message;

    const auto original = plain.run<float>(0, kRows, plain.routing());
    for (uint32_t row = 0; row < kRows; ++row) {
      for (uint32_t c = 0; c < kHidden; ++c) {
        const size_t i = size_t{row} * kHidden + c;
        const auto* e8m0 = reinterpret_cast<const uint8_t*>(scales.data());
        const float scale = format == ActivationFormat::mxfp8
                                ? std::ldexp(1.0f, e8m0[row * scales_a_row + c / 32] - 127)
                                : scales[row * scales_a_row];
        const auto code = std::to_integer<uint8_t>(values[i]);
        const int exponent = code >> 3 & 15, mantissa = code & 7;
        const float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                                              : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
        const float value = format == ActivationFormat::int8 ? static_cast<float>(static_cast<int8_t>(code))
                            : code >= 128                    ? -magnitude
                                                             : magnitude;
        plain.layer.input[i] = value * scale;
      }
    }
    EXPECT_EQ(got, plain.run<float>(0, kRows, plain.routing())) << activation_format_name(format);
    EXPECT_NE(got, original) << "nothing was rounded";

    // What does not fit is refused by name; gate and shared experts of this side take plain rows.
    const auto message = [&](auto change) {
      MoeRequest wrong = request;
      change(wrong);
      const Status refused = (*block)->run(wrong);
      return refused ? std::string("accepted") : refused.error().message;
    };
    EXPECT_NE(message([](auto& r) { r.in.scales = nullptr; }).find("without their scales"),
              std::string::npos);
    EXPECT_NE(message([&](auto& r) { r.in = plain.in(); }).find("an activation of f32 rows"),
              std::string::npos);
    EXPECT_TRUE((*block)->run_shared(1, kRows, plain.in(), request.out).has_value());
    EXPECT_FALSE((*block)->run_shared(1, kRows, request.in, request.out).has_value());
    options.routes = true;
    auto routing = MoeBlock::create(plain.layer.shape(), layers, options, plain.runner);
    ASSERT_FALSE(routing.has_value());
    EXPECT_NE(routing.error().message.find(std::string(activation_format_name(format)) +
                                           " activations where the router is"),
              std::string::npos)
        << routing.error().message;
  }
}

// A request in pieces, other work of the same weights between them: no bit changes, and the caller is asked
// between any two.
TEST(MoeBlock, PiecesChangeNoBitAndLetOthersIn) {
  for (const SumMode mode : {SumMode::plain, SumMode::deterministic}) {
    BlockUnderTest setup(true, true, mode);
    const std::vector<const MoeLayerWeights*> layers = {nullptr, &setup.layer.weights};
    MoeBlockOptions options = setup.block->options();
    options.piece_limit = Duration::zero();  // every group is a piece
    auto pieces = MoeBlock::create(setup.layer.shape(), layers, options, setup.runner);
    auto urgent = MoeBlock::create(setup.layer.shape(), layers, options, setup.runner);
    ASSERT_TRUE(pieces.has_value() && urgent.has_value());
    const size_t bytes = dtype_bytes(options.reply_dtype, size_t{kRows} * kHidden);
    std::vector<std::byte> whole(bytes), cut(bytes), other(bytes);
    MoeRequest request;
    request.layer = 1;
    request.rows = kRows;
    request.in = setup.in();
    request.out = {whole.data(), bytes, MemorySpace::host};
    ASSERT_TRUE(setup.block->run(request).has_value());
    int asked = 0;
    MoeRequest small = request;
    small.rows = 3;
    small.out = {other.data(), bytes, MemorySpace::host};
    const std::function<void()> between = [&] {
      ++asked;
      EXPECT_TRUE((*urgent)->run(small).has_value());
    };
    request.between = &between;
    request.out = {cut.data(), bytes, MemorySpace::host};
    ASSERT_TRUE((*pieces)->run(request).has_value());
    EXPECT_EQ(asked + 1, static_cast<int>((*pieces)->stats().experts_read)) << "once between two experts";
    EXPECT_GT(asked, 1);
    EXPECT_EQ(cut, whole);
    const size_t three = dtype_bytes(options.reply_dtype, size_t{3} * kHidden);
    EXPECT_TRUE(std::equal(other.begin(), other.begin() + static_cast<std::ptrdiff_t>(three), whole.begin()));
  }
}

TEST(LocalFfn, CompletesEachTicketOnceAndForgetsCancelledOnes) {
  BlockUnderTest setup(true, true, SumMode::plain);
  LocalFfn port(*setup.block);
  EXPECT_TRUE(port.traits().routes);
  std::vector<float> out(size_t{kRows} * kHidden);
  FfnRequest request;
  request.layer = 1;
  request.rows = request.capacity = kRows;
  request.in = setup.in();
  request.out = {reinterpret_cast<std::byte*>(out.data()), out.size() * sizeof(float), MemorySpace::host};
  const Ticket first = *port.submit(request);
  const Ticket second = *port.submit(request);
  EXPECT_NE(first, second);
  port.cancel(first);
  request.rows = 0;
  const Ticket empty = *port.submit(request);
  std::vector<Completion> completions(8);
  ASSERT_EQ(port.poll(completions), 2u);
  EXPECT_EQ(completions[0].ticket, second);
  EXPECT_EQ(completions[1].ticket, empty);
  EXPECT_TRUE(completions[0].status.has_value());
  EXPECT_EQ(port.poll(completions), 0u);
}

// Routed and shared experts alike, against the formula; most factors of this layer exceed the limit.
TEST(MoeBlock, ClampedExpertsEqualTheFormulaInFloat64) {
  BlockUnderTest setup(true, true, SumMode::plain, 2.5f, [](Layer& layer) { layer.swiglu_limit = 0.5f; });
  expect_formula(setup);
}

// A row whose table names an expert several times gets it as often, each time with its weight.
TEST(MoeBlock, HashedLayersSumAnExpertAsOftenAsTheTableNamesIt) {
  const auto hashed = [](Layer& layer) { layer.hash(); };
  BlockUnderTest setup(true, false, SumMode::plain, 2.5f, hashed);
  setup.route();
  bool twice = false;
  for (uint32_t row = 0; row < kRows; ++row) {
    for (uint32_t k = 0; k < kTopK; ++k) {
      const auto token = static_cast<size_t>(setup.token_ids[row]);
      ASSERT_EQ(setup.ids[row * kTopK + k], setup.layer.weights.hash_experts[token * kTopK + k]);
    }
    twice = twice || setup.ids[row * kTopK] == setup.ids[row * kTopK + 1];
  }
  ASSERT_TRUE(twice);
  const auto out = setup.run<float>(0, kRows, TokenIds{setup.token_ids});
  for (uint32_t row = 0; row < kRows; ++row) {
    std::vector<double> want(kHidden);
    for (uint32_t k = 0; k < kTopK; ++k) {
      const auto expert =
          setup.layer.reference_mlp(setup.layer.experts[static_cast<size_t>(setup.ids[row * kTopK + k])],
                                    setup.layer.input.data() + size_t{row} * kHidden);
      for (uint32_t o = 0; o < kHidden; ++o) want[o] += setup.weights[row * kTopK + k] * expert[o];
    }
    for (uint32_t o = 0; o < kHidden; ++o)
      ASSERT_NEAR(out[size_t{row} * kHidden + o], want[o], 2e-4) << row << " " << o;
  }
}

// Where the look-up happens makes no difference, nor where the shared experts run.
TEST(MoeBlock, HashedLayersGiveTheSameBitsInEveryPlacement) {
  const auto hashed = [](Layer& layer) {
    layer.hash();
    layer.swiglu_limit = 0.5f;
  };
  BlockUnderTest colocated(true, true, SumMode::deterministic, 2.5f, hashed);
  const auto want = colocated.run<double>(0, kRows, TokenIds{colocated.tokens()});
  for (bool gate_here : {true, false}) {
    for (bool shared_here : {true, false}) {
      BlockUnderTest setup(gate_here, shared_here, SumMode::deterministic, 2.5f, hashed);
      setup.route();
      auto got = setup.run<double>(
          0, kRows, gate_here ? RoutingRef(TokenIds{setup.tokens()}) : RoutingRef(setup.routing()));
      if (!shared_here) {
        const auto shared = setup.run_shared<double>();
        for (size_t i = 0; i < got.size(); ++i) got[i] += shared[i];
      }
      EXPECT_EQ(got, want) << gate_here << shared_here;
    }
  }
}

TEST(MoeBlock, HashedLayersRefuseTokensByName) {
  BlockUnderTest setup(true, true, SumMode::plain, 2.5f, [](Layer& layer) { layer.hash(); });
  EXPECT_TRUE(LocalFfn(*setup.block).traits().wants_token_ids);
  std::vector<float> out(size_t{kRows} * kHidden);
  MoeRequest request;
  request.layer = 1;
  request.rows = kRows;
  request.in = setup.in();
  request.out = {reinterpret_cast<std::byte*>(out.data()), out.size() * sizeof(float), MemorySpace::host};
  const auto expect_refused = [&](ErrorCode code, const std::string& word) {
    const Status status = setup.block->run(request);
    ASSERT_FALSE(status.has_value());
    EXPECT_EQ(status.error().code, code);
    EXPECT_NE(status.error().message.find(word), std::string::npos) << status.error().message;
  };
  expect_refused(ErrorCode::invalid_argument,
                 "layer 1 takes experts by token id, and 0 ids came with 37 rows");
  std::vector<int32_t> tokens(setup.tokens().begin(), setup.tokens().end());
  for (const int32_t outside : {-1, static_cast<int32_t>(kVocab)}) {
    tokens[5] = outside;
    request.routing = TokenIds{tokens};
    expect_refused(ErrorCode::out_of_range,
                   "layer 1, row 5: token id " + std::to_string(outside) + " outside a vocabulary of 50");
  }
}

TEST(MoeBlock, TablesThatDoNotFitAreRefused) {
  BlockUnderTest setup(true, true, SumMode::plain, 2.5f, [](Layer& layer) { layer.hash(); });
  const auto expect_refused = [&](const std::string& word) {
    const MoeLayerWeights* layers[] = {nullptr, &setup.layer.weights};
    const auto block = MoeBlock::create(setup.layer.shape(), layers, setup.block->options(), setup.runner);
    ASSERT_FALSE(block.has_value());
    EXPECT_NE(block.error().message.find(word), std::string::npos) << block.error().message;
  };
  setup.layer.weights.hash_experts[7 * kTopK + 1] = kExperts;
  expect_refused("layer 1: the table gives expert 8 to token 7 of 8 experts");
  setup.layer.weights.hash_experts.resize(3);
  expect_refused("layer 1: a table of 3 experts for 50 tokens with top_k 3");
}

}  // namespace
}  // namespace tandem
