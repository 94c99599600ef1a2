// For the tests of the split: a random MoE model of three layers (two with experts), the blocks of both
// sides, and an FFN worker with a RemoteFfn in front of it.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "afd/remote_ffn.h"
#include "base/bf16.h"
#include "ffn/ffn_worker.h"
#include "moe/expert_placement.h"
#include "transport/transports.h"

namespace tandem::split_testing {

inline constexpr uint32_t kHidden = 72, kIntermediate = 40, kShared = 56, kExperts = 8, kTopK = 3,
                          kVocab = 100;

struct Placement {
  bool gate_on_attention = false;
  bool shared_on_attention = false;
  bool token_ids = false;
  bool hashed = false;  // layer 1 takes its experts by token id, layer 2 scores
  DType dtype = DType::bf16;
  SumMode sum_mode = SumMode::plain;
  ActivationFormat format = ActivationFormat::plain;
  uint32_t num_experts = kExperts;
  float scaling_factor = 2.5f;
};

inline constexpr ActivationFormat kQuantizedFormats[] = {ActivationFormat::fp8, ActivationFormat::mxfp8,
                                                         ActivationFormat::int8};

// Weights do not depend on the placement: the seed is fixed. Experts and rows outside `held` are not there.
class SplitModel {
 public:
  explicit SplitModel(const Placement& placement, const ExpertShare& held = {})
      : pool_(1), runner_(*KernelRunner::create(**choose_kernel_table(), pool_)), placement_(placement) {
    router_.num_experts = placement.num_experts;
    router_.top_k = kTopK;
    router_.score = RouterScore::sigmoid;
    router_.has_bias = true;
    router_.renormalize = true;
    router_.scaling_factor = placement.scaling_factor;
    for (MoeLayerWeights& layer : layers_) {
      layer.router = matrix(PackArrangement::plain, placement.num_experts, kHidden);
      for (uint32_t expert = 0; expert < placement.num_experts; ++expert) {
        layer.experts.push_back(mlp(kIntermediate, held.rows.within(kIntermediate)));
        layer.router_bias.push_back(0.1f * static_cast<float>(expert % 3));
      }
      for (uint32_t expert = 0; expert < placement.num_experts; ++expert) {
        if (!held.contains(expert)) layer.experts[expert] = {};
      }
      layer.shared = mlp(kShared, {0, kShared});
    }
    if (placement.hashed) {
      // Some rows name an expert twice.
      for (uint32_t i = 0; i < kVocab * kTopK; ++i)
        layers_[0].hash_experts.push_back(static_cast<int32_t>(i * i / 2 % placement.num_experts));
      layers_[0].router_bias.clear();
    }
    MoeBlockOptions options;
    options.routes = !placement.gate_on_attention;
    options.runs_shared_experts = !placement.shared_on_attention;
    options.sum_mode = placement.sum_mode;
    options.compute_dtype = placement.dtype;
    options.activation_format = placement.format;
    options.reply_dtype = settings().reply_dtype;
    const MoeShape shape{
        kHidden, kIntermediate, kShared, router_, placement.hashed ? 0.5f : 0.0f, placement.hashed ? 2u : 0u,
        kVocab};
    auto created = MoeBlock::create(shape, layers(), options, runner_);
    EXPECT_TRUE(created.has_value()) << created.error().message;
    block_ = std::move(*created);
  }

  MoeBlock& block() { return *block_; }
  KernelRunner& runner() { return runner_; }
  std::vector<const MoeLayerWeights*> layers() const { return {nullptr, &layers_[0], &layers_[1]}; }
  SplitSettings settings() const {
    SplitSettings settings;
    settings.model_fingerprint = 42;
    settings.hidden_size = kHidden;
    settings.num_layers = 3;
    settings.vocab_size = kVocab;
    settings.num_experts = placement_.num_experts;
    settings.top_k = kTopK;
    settings.moe_intermediate_size = kIntermediate;
    settings.shared_intermediate_size = kShared;
    settings.moe_layers = {1, 2};
    settings.gate_on_attention = placement_.gate_on_attention;
    settings.shared_experts_on_attention = placement_.shared_on_attention;
    settings.num_hash_layers = placement_.hashed ? 2 : 0;
    settings.token_ids = placement_.token_ids;
    settings.set_dtypes(placement_.dtype, placement_.sum_mode, placement_.format);
    settings.numerics_id = runner_.table().numerics_id;
    return settings;
  }
  FfnWorkerOptions worker_options(const std::string& address, uint16_t rank = 0) const {
    FfnWorkerOptions options;
    options.listen_address = address;
    options.rank = rank;
    options.settings = settings();
    options.pieces = held_pieces(layers(), OwnerId{rank, 0});
    return options;
  }
  RemoteFfnOptions remote_options(const std::string& address) const {
    RemoteFfnOptions options;
    options.addresses = {address};
    options.settings = settings();
    options.start_limit = std::chrono::seconds(20);
    return options;
  }

 private:
  // Keeps `kept` of the rows of each of `parts` equal parts, and `columns` of the columns.
  PackedWeight matrix(PackArrangement arrangement, uint32_t rows, uint32_t cols, uint32_t parts = 1,
                      RowRange kept = {}, RowRange columns = {}) {
    std::normal_distribution<float> normal(0, 0.3f);
    std::vector<float> values;
    kept = kept.within(rows / parts);
    columns = columns.within(cols);
    for (uint32_t row = 0; row < rows; ++row) {
      for (uint32_t col = 0; col < cols; ++col) {
        const float value = normal(random_);
        const uint32_t at = row % (rows / parts);
        if (at >= kept.begin && at < kept.end && col >= columns.begin && col < columns.end)
          values.push_back(value);
      }
    }
    rows = parts * kept.size();
    cols = columns.size();
    const PackFormat format = placement_.dtype == DType::f32 ? PackFormat::f32 : PackFormat::bf16;
    const KernelTable& table = runner_.table();
    const size_t bytes = table.packed_bytes(format, arrangement, rows, cols);
    storage_.push_back(*OwnedBuffer::allocate(bytes));
    table.pack(format, arrangement, rows, cols, 0, rows, DType::f32, values.data(), storage_.back().data());
    return {format, arrangement, rows, cols, storage_.back().data(), bytes};
  }
  MlpWeights mlp(uint32_t intermediate, RowRange rows) {
    return {.gate_up = matrix(PackArrangement::gate_up, 2 * intermediate, kHidden, 2, rows),
            .down = matrix(PackArrangement::plain, kHidden, intermediate, 1, {}, rows),
            .row_begin = rows.begin};
  }

  ThreadPool pool_;
  KernelRunner runner_;
  Placement placement_;
  RouterConfig router_;
  std::mt19937 random_{17};
  std::vector<OwnedBuffer> storage_;
  MoeLayerWeights layers_[2];
  std::unique_ptr<MoeBlock> block_;
};

// Input, routing and output of one request; `expected` is what the block says without any wire.
class Work {
 public:
  // `expert_of(row, slot)` >= 0 replaces the routed expert; only with the gate on attention.
  Work(SplitModel& reference, LayerIndex layer, uint32_t rows, uint32_t seed,
       const std::function<int32_t(uint32_t, uint32_t)>& expert_of = {})
      : settings_(reference.settings()) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0, 1);
    rows_f32_.resize(size_t{rows} * kHidden);
    for (float& value : rows_f32_) value = normal(random);
    if (is_quantized(settings_.activation_format)) {
      // Rows and the parts of a row have scales of their own: under another row's or block's they are wrong.
      for (size_t i = 0; i < rows_f32_.size(); ++i) {
        const size_t row = i / kHidden, part = i % kHidden / 32;
        rows_f32_[i] = std::ldexp(rows_f32_[i], static_cast<int>((row * 3 + part * 5) % 7) - 3);
      }
    }
    for (const float value : rows_f32_) rows_bf16_.push_back(to_bf16(value));
    for (uint32_t row = 0; row < rows; ++row) tokens_.push_back(static_cast<int32_t>(random() % kVocab));
    ids_.assign(size_t{rows} * kTopK, -999999);
    weights_.resize(ids_.size());
    request.layer = layer;
    request.step = seed;
    request.rows = request.capacity = rows;
    request.in = {settings_.compute_dtype, nullptr, kHidden};
    request.in.data = settings_.compute_dtype == DType::f32 ? static_cast<const void*>(rows_f32_.data())
                                                            : rows_bf16_.data();
    if (settings_.gate_on_attention) {
      EXPECT_TRUE(reference.block().route_rows(layer, rows, request.in, ids_, weights_, tokens_).has_value());
      for (size_t i = 0; expert_of && i < ids_.size(); ++i) {
        ids_[i] = expert_of(static_cast<uint32_t>(i / kTopK), static_cast<uint32_t>(i % kTopK));
      }
      request.routing = RoutingView{ids_, weights_, kTopK};
    } else if (settings_.token_ids) {
      request.routing = TokenIds{tokens_};
    }
    if (is_quantized(settings_.activation_format)) quantize(reference.runner());
    output_.assign(dtype_bytes(settings_.reply_dtype, size_t{rows} * kHidden), std::byte{0xee});
    expected_.assign(output_.size(), std::byte{0x11});
    request.out = {output_.data(), output_.size(), MemorySpace::host};
    const MoeRequest direct{
        layer, rows, request.in, request.routing, {expected_.data(), expected_.size(), MemorySpace::host}};
    const Status status = reference.block().run(direct);
    EXPECT_TRUE(status.has_value()) << status.error().message;
  }
  Work(Work&&) = delete;  // the request points into this object

  // The largest difference from what the block says, for replies of float32.
  float largest_error() const {
    const auto* got = reinterpret_cast<const float*>(output_.data());
    const auto* want = reinterpret_cast<const float*>(expected_.data());
    float largest = 0;
    for (size_t i = 0; i < output_.size() / sizeof(float); ++i)
      largest = std::max(largest, std::abs(got[i] - want[i]));
    return largest;
  }
  bool output_is_exact() const { return output_ == expected_; }
  std::span<const std::byte> output() const { return output_; }
  bool output_is_untouched() const {
    return std::ranges::all_of(output_, [](std::byte byte) { return byte == std::byte{0xee}; });
  }
  void reset_output() { std::ranges::fill(output_, std::byte{0xee}); }

  FfnRequest request;

 private:
  // As attention does before it submits; the gate has seen the rows as they were.
  void quantize(KernelRunner& runner) {
    const ActivationFormat format = settings_.activation_format;
    values_.resize(size_t{request.rows} * kHidden);
    scales_.resize(size_t{request.rows} * scale_cols(format, kHidden));
    QuantizeArgs args;
    args.in = request.in;
    args.format = format;
    args.values = values_.data();
    args.scales = scales_.data();
    args.rows = request.rows;
    args.cols = kHidden;
    runner.run(runner.table().quantize_rows, args);
    request.in = {settings_.activation_dtype, values_.data(), kHidden, format, scales_.data(),
                  scale_cols(format, kHidden)};
  }

  SplitSettings settings_;
  std::vector<std::byte> values_;  // quantised rows, with more room for scales than bytes of e8m0 need
  std::vector<float> scales_;
  std::vector<float> rows_f32_;
  std::vector<bf16> rows_bf16_;
  std::vector<int32_t> tokens_, ids_;
  std::vector<float> weights_;
  std::vector<std::byte> output_, expected_;
};

// Tests wait for what must come; a test that waits for longer hangs, and says so.
template <class Condition>
bool eventually(Condition&& condition) {
  const Instant limit = now() + std::chrono::seconds(30);  // a limit for hangs, not a measure
  while (!condition()) {  // true once is enough: the next call may meet another rank
    if (now() > limit) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

// Waits for `count` completions; a test that waits for longer than this hangs, and says so.
inline std::vector<Completion> wait_for(FfnPort& port, size_t count) {
  std::vector<Completion> all;
  const Instant limit = now() + std::chrono::seconds(60);
  while (all.size() < count && now() < limit) {
    Completion some[8];
    const size_t got = port.poll(some);
    for (size_t i = 0; i < got; ++i) all.push_back(std::move(some[i]));
    if (got != 0 || port.wait_fd() < 0) continue;
    pollfd wait{.fd = port.wait_fd(), .events = POLLIN, .revents = 0};
    ::poll(&wait, 1, 1000);
  }
  EXPECT_EQ(all.size(), count) << "completions are missing";
  return all;
}

// Submits, polling while there is no credit.
inline Ticket submit(FfnPort& port, const FfnRequest& request, std::vector<Completion>& finished) {
  while (true) {
    const auto ticket = port.submit(request);
    if (ticket) return *ticket;
    if (ticket.error().code != ErrorCode::would_block) {
      ADD_FAILURE() << ticket.error().message;
      return 0;
    }
    for (Completion& completion : wait_for(port, 1)) finished.push_back(std::move(completion));
  }
}

inline Status run_one(FfnPort& port, Work& work) {
  const auto ticket = port.submit(work.request);
  if (!ticket) return std::unexpected(ticket.error());
  auto finished = wait_for(port, 1);
  if (finished.empty()) return make_error(ErrorCode::internal, "nothing completed");
  return finished.front().status;
}

// Why a start gives up that cannot succeed: with time enough, on a slow machine too, that it has met what it
// says, and no more.
template <class Port>
Error start_refusal(RemoteFfnOptions options, std::string_view words, std::string_view others = "(nothing)") {
  for (Duration limit = std::chrono::milliseconds(250);; limit *= 4) {
    options.start_limit = limit;
    const auto port = Port::create(options);
    if (port) return {ErrorCode::internal, "it has started"};
    const std::string& message = port.error().message;
    if ((message.find(words) != std::string::npos && message.find(others) == std::string::npos) ||
        limit > std::chrono::seconds(10))
      return port.error();
  }
}

// A fresh address of a transport; ports and paths are chosen so that tests may run side by side.
inline std::string fresh_address(std::string_view scheme) {
  static std::atomic<int> counter{0};
  const std::string name = "tandem-split-" + std::to_string(getpid()) + "-" + std::to_string(counter++);
  if (scheme == "tcp" || scheme == "ucx") return std::string(scheme) + "://127.0.0.1:0";
  if (scheme == "shm") return "shm://" + testing::TempDir() + name;
  return std::string(scheme) + "://" + name;
}

inline std::vector<std::string> all_schemes() {
  std::vector<std::string> schemes;
  for (const Transport& transport : transports()) schemes.emplace_back(transport.scheme);
  return schemes;
}

}  // namespace tandem::split_testing
