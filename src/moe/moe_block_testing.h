// For tests of MoeBlock: one layer of random weights, its float64 reference, and a block over it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <random>

#include "moe/moe_block.h"
#include "moe/router.h"

namespace tandem::moe_testing {

inline constexpr uint32_t kHidden = 72, kIntermediate = 40, kShared = 56, kExperts = 8, kTopK = 3, kRows = 37,
                          kVocab = 50;

// One MoE layer of random weights in float32, kept as plain matrices for the reference and packed for the
// block.
struct Layer {
  struct Mlp {
    std::vector<float> gate_up, down;  // [2 * intermediate, hidden], [hidden, intermediate]
    uint32_t intermediate = 0;
  };

  explicit Layer(const KernelTable& table, float scaling_factor = 2.5f) {
    router_config.num_experts = kExperts;
    router_config.top_k = kTopK;
    router_config.score = RouterScore::sigmoid;
    router_config.has_bias = true;
    router_config.renormalize = true;
    router_config.scaling_factor = scaling_factor;
    router = random_matrix(kExperts, kHidden);
    weights.router = pack(table, PackArrangement::plain, kExperts, kHidden, router);
    for (uint32_t e = 0; e < kExperts; ++e) {
      experts.push_back(random_mlp(kIntermediate));
      weights.experts.push_back(pack(table, experts.back()));
      weights.router_bias.push_back(0.1f * static_cast<float>(e % 3));
    }
    shared = random_mlp(kShared);
    weights.shared = pack(table, shared);
    input = random_matrix(kRows, kHidden);
  }

  std::vector<float> random_matrix(uint32_t rows, uint32_t cols) {
    std::normal_distribution<float> normal(0, 0.3f);
    std::vector<float> values(size_t{rows} * cols);
    for (float& value : values) value = normal(random);
    return values;
  }
  Mlp random_mlp(uint32_t intermediate) {
    return {random_matrix(2 * intermediate, kHidden), random_matrix(kHidden, intermediate), intermediate};
  }
  PackedWeight pack(const KernelTable& table, PackArrangement arrangement, uint32_t rows, uint32_t cols,
                    const std::vector<float>& values) {
    const size_t bytes = table.packed_bytes(PackFormat::f32, arrangement, rows, cols);
    storage.push_back(*OwnedBuffer::allocate(bytes));
    table.pack(PackFormat::f32, arrangement, rows, cols, 0, rows, DType::f32, values.data(),
               storage.back().data());
    return {PackFormat::f32, arrangement, rows, cols, storage.back().data(), bytes};
  }
  MlpWeights pack(const KernelTable& table, const Mlp& mlp) {
    return {.gate_up = pack(table, PackArrangement::gate_up, 2 * mlp.intermediate, kHidden, mlp.gate_up),
            .down = pack(table, PackArrangement::plain, kHidden, mlp.intermediate, mlp.down)};
  }

  // Intermediate rows [begin, end) of an expert, as a rank that holds this slice has them.
  MlpWeights slice(const KernelTable& table, const Mlp& mlp, uint32_t begin, uint32_t end) {
    Mlp part{{}, {}, end - begin};
    for (const uint32_t half : {0u, mlp.intermediate}) {
      part.gate_up.insert(part.gate_up.end(), mlp.gate_up.begin() + (half + begin) * kHidden,
                          mlp.gate_up.begin() + (half + end) * kHidden);
    }
    for (uint32_t o = 0; o < kHidden; ++o) {
      const auto row = mlp.down.begin() + o * mlp.intermediate;
      part.down.insert(part.down.end(), row + begin, row + end);
    }
    MlpWeights packed = pack(table, part);
    packed.row_begin = begin;
    return packed;
  }

  std::vector<double> reference_mlp(const Mlp& mlp, const float* x) const {
    std::vector<double> hidden(mlp.intermediate);
    for (uint32_t i = 0; i < mlp.intermediate; ++i) {
      double gate = 0, up = 0;
      for (uint32_t k = 0; k < kHidden; ++k) {
        gate += static_cast<double>(mlp.gate_up[size_t{i} * kHidden + k]) * x[k];
        up += static_cast<double>(mlp.gate_up[size_t{i + mlp.intermediate} * kHidden + k]) * x[k];
      }
      if (swiglu_limit > 0) {
        gate = std::min(gate, static_cast<double>(swiglu_limit));
        up = std::clamp(up, -static_cast<double>(swiglu_limit), static_cast<double>(swiglu_limit));
      }
      hidden[i] = gate / (1 + std::exp(-gate)) * up;
    }
    std::vector<double> out(kHidden);
    for (uint32_t o = 0; o < kHidden; ++o) {
      for (uint32_t i = 0; i < mlp.intermediate; ++i)
        out[o] += mlp.down[size_t{o} * mlp.intermediate + i] * hidden[i];
    }
    return out;
  }

  // Experts by token id: three tokens in four name two experts, the others one of them three times.
  void hash() {
    for (uint32_t token = 0; token < kVocab; ++token) {
      for (uint32_t k = 0; k < kTopK; ++k) {
        const uint32_t step = token % 4 == 0 ? 0 : k % 2 + 1;
        weights.hash_experts.push_back(static_cast<int32_t>((token + step) % kExperts));
      }
    }
    weights.router_bias.clear();
    num_hash_layers = 2;
  }

  MoeShape shape() const {
    return {kHidden,      kIntermediate,   kShared, router_config,
            swiglu_limit, num_hash_layers, kVocab,  gates_shared_expert};
  }

  float swiglu_limit = 0.0f;
  uint32_t num_hash_layers = 0;
  bool gates_shared_expert = false;

  std::mt19937 random{17};
  RouterConfig router_config;
  std::vector<float> router, input;
  std::vector<Mlp> experts;
  Mlp shared;
  MoeLayerWeights weights;
  std::vector<OwnedBuffer> storage;
};

struct BlockUnderTest {
  // `adjust`: changes the layer before the block is made.
  BlockUnderTest(bool routes, bool runs_shared, SumMode mode, float scaling_factor = 2.5f,
                 const std::function<void(Layer&)>& adjust = {})
      : pool(2),
        runner(*KernelRunner::create(**choose_kernel_table(), pool)),
        layer(runner.table(), scaling_factor) {
    if (adjust) adjust(layer);
    MoeBlockOptions options;
    options.routes = routes;
    options.runs_shared_experts = runs_shared;
    options.sum_mode = mode;
    options.compute_dtype = DType::f32;
    options.reply_dtype = mode == SumMode::deterministic ? DType::f64 : DType::f32;
    const MoeLayerWeights* layers[] = {nullptr, &layer.weights};
    auto created = MoeBlock::create(layer.shape(), layers, options, runner);
    EXPECT_TRUE(created.has_value()) << created.error().message;
    block = std::move(*created);
  }

  ActivationView in(uint32_t first = 0) const {
    return {DType::f32, layer.input.data() + size_t{first} * kHidden, kHidden};
  }

  void route() {
    ids.resize(size_t{kRows} * kTopK);
    weights.resize(ids.size());
    ASSERT_TRUE(block->route_rows(1, kRows, in(), ids, weights, tokens()).has_value());
  }

  template <class T>
  std::vector<T> run(uint32_t first, uint32_t rows, RoutingRef routing = NoRouting{}) {
    std::vector<T> out(size_t{rows} * kHidden, std::numeric_limits<T>::quiet_NaN());
    MoeRequest request;
    request.layer = 1;
    request.rows = rows;
    request.in = in(first);
    request.routing = routing;
    request.out = {reinterpret_cast<std::byte*>(out.data()), out.size() * sizeof(T), MemorySpace::host};
    const Status status = block->run(request);
    EXPECT_TRUE(status.has_value()) << status.error().message;
    return out;
  }
  template <class T>
  std::vector<T> run_shared() {
    std::vector<T> out(size_t{kRows} * kHidden);
    EXPECT_TRUE(block
                    ->run_shared(
                        1, kRows, in(),
                        {reinterpret_cast<std::byte*>(out.data()), out.size() * sizeof(T), MemorySpace::host})
                    .has_value());
    return out;
  }
  // Of every row; none where the layer does not ask.
  std::span<const int32_t> tokens() {
    if (layer.num_hash_layers == 0) return {};
    token_ids.clear();
    for (uint32_t row = 0; row < kRows; ++row) token_ids.push_back(static_cast<int32_t>(row * 13 % kVocab));
    return token_ids;
  }
  RoutingView routing() const { return {ids, weights, kTopK}; }

  ThreadPool pool;
  KernelRunner runner;
  Layer layer;
  std::unique_ptr<MoeBlock> block;
  std::vector<int32_t> ids, token_ids;
  std::vector<float> weights;
};

}  // namespace tandem::moe_testing
