// What the tests of the model share: a fixture as a model, and runs of the same tokens cut into steps in
// different ways.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "model/model.h"
#include "model/offline_runner.h"

namespace tandem::test {

// One fixture of each shape of a family: MLA with and without q_lora, V2's and V3's routers, GQA with head
// norms, plain, with multipliers, with whole norms, biases and clipped values, with a gated shared expert,
// with heads that rotate in part, and with sinks, windows and biases of the experts; a window with compressed
// entries and residual streams.
inline constexpr const char* kFamilies[] = {"deepseek_v2", "deepseek_v3", "moonlight",   "qwen3_moe",
                                            "mixtral",     "granitemoe",  "deepseek_v4", "olmoe",
                                            "qwen2_moe",   "glm4_moe",    "gpt_oss"};

struct TestModel {
  ModelConfig config;
  std::unique_ptr<ModelWeights> weights;
  std::unique_ptr<Model> model;
};

struct TestKernels {
  explicit TestKernels(int threads) : pool(threads) {
    runner =
        std::make_unique<KernelRunner>(KernelRunner::create(*choose_kernel_table().value(), pool).value());
  }
  ThreadPool pool;
  std::unique_ptr<KernelRunner> runner;
};

inline KernelRunner& kernels() {
  static TestKernels one_thread(1);
  return *one_thread.runner;
}

// `edit` may change the configuration before the model is made of it.
inline TestModel load_fixture(const std::string& name, DType compute_dtype,
                              void (*edit)(ModelConfig&) = nullptr) {
  const std::string folder = "tests/fixtures/" + name;
  TestModel out;
  out.config = parse_model_config(read_config_json(folder).value(), name).value();
  if (edit != nullptr) edit(out.config);
  LoadOptions options;
  options.compute_dtype = compute_dtype;
  options.show_progress = false;
  Result<ModelWeights> weights =
      load_model_weights(folder, out.config, kernels().table(), kernels().pool(), options);
  EXPECT_TRUE(weights) << weights.error().message;
  out.weights = std::make_unique<ModelWeights>(std::move(*weights));
  Result<Model> model = Model::create(out.config, *out.weights);
  EXPECT_TRUE(model) << model.error().message;
  out.model = std::make_unique<Model>(std::move(*model));
  return out;
}

// Tokens of some sequences, the same for every test.
inline std::vector<std::vector<int32_t>> make_sequences(uint32_t vocab_size, std::vector<size_t> lengths) {
  std::mt19937 random(11);
  std::uniform_int_distribution<int32_t> token(0, static_cast<int32_t>(vocab_size) - 1);
  std::vector<std::vector<int32_t>> sequences;
  for (const size_t length : lengths) {
    std::vector<int32_t>& tokens = sequences.emplace_back(length);
    for (int32_t& id : tokens) id = token(random);
  }
  return sequences;
}

using Steps = std::vector<std::vector<OfflineRow>>;
// Logits of (sequence, position).
using AllLogits = std::map<std::pair<uint32_t, uint32_t>, std::vector<float>>;

inline std::vector<OfflineRow> rows_of(const std::vector<std::vector<int32_t>>& sequences, uint32_t sequence,
                                       uint32_t begin, uint32_t end) {
  std::vector<OfflineRow> rows;
  for (uint32_t position = begin; position < end; ++position) {
    rows.push_back({sequence, position, sequences[sequence][position]});
  }
  return rows;
}

// Every sequence alone, in chunks of `chunk` tokens.
inline Steps chunked(const std::vector<std::vector<int32_t>>& sequences, uint32_t chunk) {
  Steps steps;
  for (uint32_t sequence = 0; sequence < sequences.size(); ++sequence) {
    const auto length = static_cast<uint32_t>(sequences[sequence].size());
    for (uint32_t begin = 0; begin < length; begin += chunk) {
      steps.push_back(rows_of(sequences, sequence, begin, std::min(length, begin + chunk)));
    }
  }
  return steps;
}

// Batches of several sequences at once, with chunks of changing sizes and the sequences in changing order.
inline Steps mixed(const std::vector<std::vector<int32_t>>& sequences, uint32_t capacity, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<uint32_t> done(sequences.size(), 0);
  Steps steps;
  for (;;) {
    std::vector<uint32_t> order;
    for (uint32_t sequence = 0; sequence < sequences.size(); ++sequence) {
      if (done[sequence] < sequences[sequence].size()) order.push_back(sequence);
    }
    if (order.empty()) return steps;
    std::shuffle(order.begin(), order.end(), random);
    std::vector<OfflineRow>& step = steps.emplace_back();
    for (const uint32_t sequence : order) {
      const auto left = static_cast<uint32_t>(sequences[sequence].size()) - done[sequence];
      const auto room = capacity - static_cast<uint32_t>(step.size());
      const uint32_t most = std::min(left, room);
      if (most == 0) continue;
      const uint32_t count = std::uniform_int_distribution<uint32_t>(1, most)(random);
      const std::vector<OfflineRow> rows =
          rows_of(sequences, sequence, done[sequence], done[sequence] + count);
      step.insert(step.end(), rows.begin(), rows.end());
      done[sequence] += count;
    }
  }
}

// Runs the steps. Before each, every byte of the lane's buffers is set from `poison`, if there is one: what
// spare rows and earlier steps left behind must not matter.
inline AllLogits run_steps(const Model& model, const OfflineOptions& options, const Steps& steps,
                           const float* poison = nullptr, KernelRunner& on = kernels()) {
  Result<std::unique_ptr<OfflineRunner>> runner = OfflineRunner::create(model, on, options);
  EXPECT_TRUE(runner) << runner.error().message;
  AllLogits all;
  for (const std::vector<OfflineRow>& rows : steps) {
    if (poison != nullptr) {
      const std::span<std::byte> buffers = (*runner)->lane().buffers();
      for (size_t i = 0; i + sizeof(float) <= buffers.size(); i += sizeof(float)) {
        std::memcpy(buffers.data() + i, poison, sizeof(float));
      }
    }
    Result<std::span<const float>> logits = (*runner)->run(rows);
    EXPECT_TRUE(logits) << logits.error().message;
    if (!logits) return all;
    const size_t vocab = (*runner)->vocab_size();
    for (size_t row = 0; row < rows.size(); ++row) {
      const auto first = logits->begin() + static_cast<std::ptrdiff_t>(row * vocab);
      all[{rows[row].sequence, rows[row].position}].assign(first, first + static_cast<std::ptrdiff_t>(vocab));
    }
  }
  return all;
}

inline void expect_same_bits(const AllLogits& have, const AllLogits& want, const std::string& what) {
  ASSERT_EQ(have.size(), want.size()) << what;
  for (const auto& [row, logits] : want) {
    const auto found = have.find(row);
    ASSERT_NE(found, have.end()) << what;
    ASSERT_EQ(found->second.size(), logits.size()) << what;
    ASSERT_EQ(std::memcmp(found->second.data(), logits.data(), logits.size() * sizeof(float)), 0)
        << what << ": sequence " << row.first << " position " << row.second << ": " << found->second[0]
        << " for " << logits[0];
  }
}

}  // namespace tandem::test
