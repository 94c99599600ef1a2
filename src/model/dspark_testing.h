// A small random DeepSeek-V4 checkpoint with a DSpark drafter, for the tests of drafts. Of plainly random
// weights no draft would ever be right. So here the sublayers add little to the residual: the last token
// decides most of the next, and the Markov head knows that much.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "checkpoint/safetensors_writer.h"
#include "model/load_plan.h"
#include "model/model_test_support.h"

namespace tandem::test {

struct DsparkShape {
  std::string ratios = "0,4,128";  // of the three layers
  uint32_t num_hash_layers = 1;
  uint32_t block = 5;
  std::string targets = "2,0";
};

class DsparkFixture {
 public:
  struct Values {
    std::vector<uint64_t> shape;
    std::vector<float> values;
    size_t cols() const { return shape.back(); }
  };
  static constexpr uint32_t kHidden = 32, kVocab = 64, kRank = 32, kStages = 2, kNoise = 3;

  explicit DsparkFixture(const DsparkShape& shape = {})
      : folder_(std::filesystem::temp_directory_path() /
                ("tandem_dspark_" + std::to_string(getpid()) + "_" + std::to_string(count()++))) {
    config_ = parse_model_config(
                  R"({"model_type":"deepseek_v4","vocab_size":64,"hidden_size":32,"num_hidden_layers":3,
 "num_attention_heads":4,"head_dim":16,"q_lora_rank":24,"o_groups":2,"o_lora_rank":12,"index_n_heads":2,
 "index_head_dim":8,"index_topk":4,"n_routed_experts":4,"num_experts_per_tok":2,"moe_intermediate_size":16,
 "qk_rope_head_dim":8,"sliding_window":12,"hc_mult":2,"hc_sinkhorn_iters":3,"dspark_markov_rank":32,
 "dspark_noise_token_id":3,"num_nextn_predict_layers":1,"num_hash_layers":)" +
                      std::to_string(shape.num_hash_layers) + ",\"compress_ratios\":[" + shape.ratios +
                      ",0,0],\"dspark_block_size\":" + std::to_string(shape.block) +
                      ",\"dspark_target_layer_ids\":[" + shape.targets + "]}",
                  "config.json")
                  .value();
    std::filesystem::create_directories(folder_);
    write();
  }
  ~DsparkFixture() { std::filesystem::remove_all(folder_); }
  DsparkFixture(const DsparkFixture&) = delete;
  DsparkFixture& operator=(const DsparkFixture&) = delete;

  TestModel load(DType compute_dtype, bool drafts = true) const {
    TestModel out;
    out.config = config_;
    if (drafts) out.config.hold_drafts();
    LoadOptions options;
    options.compute_dtype = compute_dtype;
    options.show_progress = false;
    auto weights = load_model_weights(folder_, out.config, kernels().table(), kernels().pool(), options);
    EXPECT_TRUE(weights) << weights.error().message;
    out.weights = std::make_unique<ModelWeights>(std::move(*weights));
    out.model = std::make_unique<Model>(Model::create(out.config, *out.weights).value());
    return out;
  }

  const ModelConfig& config() const { return config_; }
  const Values& of(const std::string& tensor) const {
    const auto at = tensors_.find(tensor);
    if (at == tensors_.end()) ADD_FAILURE() << tensor;
    return at->second;
  }

 private:
  static int& count() {
    static int made = 0;
    return made;
  }

  void write() {
    ModelConfig all = config_;
    all.hold_drafts();
    ModelWeights unused;
    const LoadPlan plan = make_load_plan(all, unused);
    SafetensorsWriter writer;
    std::vector<std::vector<std::byte>> memory;
    for (const TensorClaim& claim : plan.claims()) {
      if (claim.released != DType::i64) tensors_[claim.tensor] = {claim.shape, random_values(claim)};
    }
    drafter_knows_the_head();
    memory.reserve(plan.claims().size());
    for (const TensorClaim& claim : plan.claims()) {
      std::vector<std::byte>& bytes = memory.emplace_back();
      if (claim.released == DType::i64) {
        std::vector<int64_t> ids(claim.elements());
        for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int64_t>((i * 7 + i / 3) % 4);
        bytes.resize(ids.size() * sizeof(int64_t));
        std::memcpy(bytes.data(), ids.data(), bytes.size());
        writer.add(claim.tensor, "I64", claim.shape, bytes);
        continue;
      }
      const std::vector<float>& values = tensors_[claim.tensor].values;
      bytes.resize(values.size() * sizeof(float));
      std::memcpy(bytes.data(), values.data(), bytes.size());
      writer.add(claim.tensor, "F32", claim.shape, bytes);
    }
    ASSERT_TRUE(writer.write(folder_ / "model.safetensors"));
  }

  std::vector<float> random_values(const TensorClaim& claim) const {
    std::mt19937 random(static_cast<uint32_t>(std::hash<std::string>{}(claim.tensor)));
    std::normal_distribution<float> normal;
    std::uniform_real_distribution<float> gain(0.5f, 1.5f);
    const auto ends = [&](const char* text) { return claim.tensor.ends_with(text); };
    const auto cols = static_cast<float>(claim.shape.back());
    float scale = 1 / std::sqrt(cols);
    if (ends("wo_b.weight") || ends("w2.weight")) scale *= 0.15f;
    if (ends("head.weight")) scale *= 3;
    if (ends("embed.weight") || ends("attn_sink")) scale = 1;
    if (ends("_base") || ends("gate.bias") || ends("ape")) scale = 0.3f;
    const bool around_one = claim.role == WeightRole::norm || ends("_scale");
    std::vector<float> values(claim.elements());
    for (float& value : values) value = around_one ? gain(random) : scale * normal(random);
    return values;
  }

  void drafter_knows_the_head() {
    const std::string last = "mtp." + std::to_string(kStages - 1) + ".";
    const std::vector<float>& embedding = tensors_["embed.weight"].values;
    const std::vector<float>& gains = tensors_["norm.weight"].values;
    std::vector<float>& in = tensors_[last + "markov_head.markov_w1.weight"].values;
    std::vector<float>& out = tensors_[last + "markov_head.markov_w2.weight"].values;
    std::vector<float>& confidence = tensors_[last + "confidence_head.proj.weight"].values;
    for (uint32_t token = 0; token < kVocab; ++token) {
      for (uint32_t i = 0; i < kRank; ++i) {
        in[token * kRank + i] = embedding[token * kHidden + i] * gains[i];
        out[token * kRank + i] = 4 * tensors_["head.weight"].values[token * kHidden + i];
      }
    }
    // The rows themselves say little beside it.
    for (float& gain : tensors_[last + "norm.weight"].values) gain *= 0.25f;
    // Rows of noise are mostly believed; what the last token is changes that.
    for (uint32_t i = 0; i < kHidden; ++i) confidence[i] += 0.1f * embedding[kNoise * kHidden + i];
  }

  std::filesystem::path folder_;
  ModelConfig config_;
  std::map<std::string, Values> tensors_;
};

}  // namespace tandem::test
