// gpt-oss' experts as they are loaded: alternating rows of gate and up, blocks of fp4 that stay as they are,
// and biases, whole and in slices.
#include "model/model_weights_testing.h"

namespace tandem {
namespace {

using namespace weights_testing;

constexpr const char* kGptOss =
    R"({"model_type":"gpt_oss","vocab_size":70,"hidden_size":96,"num_hidden_layers":2,
 "num_attention_heads":4,"num_key_value_heads":2,"head_dim":16,"intermediate_size":64,"num_local_experts":3,
 "num_experts_per_tok":2,"rope_scaling":{"rope_type":"default"},"quantization_config":{"quant_method":"mxfp4"}})";
constexpr uint32_t kHidden = 96, kWidth = 64;
constexpr const char* kExperts = "model.layers.1.mlp.experts.";

class GptOssLoadTest : public ModelWeightsTest {
 protected:
  const std::vector<float>& values(const std::string& name) { return tensors_.at(kExperts + name).values; }
  // Of expert e, rows [begin, end) of gate, then of up.
  std::vector<float> gate_up(uint32_t e, RowRange rows) {
    const std::vector<float>& all = values("gate_up_proj_blocks");
    std::vector<float> out;
    for (const uint32_t half : {0u, 1u}) {
      for (uint32_t r = rows.begin; r < rows.end; ++r) {
        const auto from = all.begin() + (size_t{e} * 2 * kWidth + 2 * r + half) * kHidden;
        out.insert(out.end(), from, from + kHidden);
      }
    }
    return out;
  }
  std::vector<float> down(uint32_t e, RowRange rows) {
    const std::vector<float>& all = values("down_proj_blocks");
    std::vector<float> out;
    for (uint32_t h = 0; h < kHidden; ++h) {
      const auto from = all.begin() + (size_t{e} * kHidden + h) * kWidth;
      out.insert(out.end(), from + rows.begin, from + rows.end);
    }
    return out;
  }
  void expect_expert(const MlpWeights& expert, uint32_t e, RowRange rows) {
    expect_packed(expert.gate_up, PackArrangement::gate_up, gate_up(e, rows), kHidden);
    expect_packed(expert.down, PackArrangement::plain, down(e, rows), rows.size());
    std::vector<float> bias;
    for (const uint32_t half : {0u, 1u}) {
      for (uint32_t r = rows.begin; r < rows.end; ++r)
        bias.push_back(values("gate_up_proj_bias")[size_t{e} * 2 * kWidth + 2 * r + half]);
    }
    EXPECT_EQ(expert.gate_up_bias, bias);
    const auto first = values("down_proj_bias").begin() + size_t{e} * kHidden;
    EXPECT_EQ(expert.down_bias,
              rows.begin == 0 ? std::vector<float>(first, first + kHidden) : std::vector<float>());
  }
};

TEST_F(GptOssLoadTest, GateAndUpAlternate) {
  make(kGptOss);
  write();
  const auto weights = load();
  ASSERT_TRUE(weights) << weights.error().message;
  const LayerWeights& layer = weights->layers[1];
  for (uint32_t e = 0; e < 3; ++e) expect_expert(layer.moe.experts[e], e, {0, kWidth});
  EXPECT_EQ(layer.moe.logit_bias, tensors_.at("model.layers.1.mlp.router.bias").values);
  EXPECT_EQ(layer.attention.sinks, tensors_.at("model.layers.1.self_attn.sinks").values);
  EXPECT_EQ(layer.attention.k_bias, tensors_.at("model.layers.1.self_attn.k_proj.bias").values);
}

TEST_F(GptOssLoadTest, RankHoldsOnlyItsSlices) {
  make(kGptOss);
  write();
  HeldParts parts{.attention = false, .experts = true, .router = false, .shared_experts = false};
  for (uint32_t rank = 0; rank < 3; ++rank) {
    parts.share.rows = slice_rows(kWidth, rank, 3);
    parts.share.experts = {{1, 3}};
    const auto share = load(DType::f32, parts);
    ASSERT_TRUE(share) << share.error().message;
    EXPECT_TRUE(share->layers[1].moe.experts[0].empty());
    EXPECT_TRUE(share->layers[1].moe.experts[0].gate_up_bias.empty());
    for (const uint32_t e : {1u, 2u}) expect_expert(share->layers[1].moe.experts[e], e, parts.share.rows);
  }
}

// With bf16 arithmetic they stay codes: an eighth of float32 and the scales.
TEST_F(GptOssLoadTest, CodesStayAsTheyAreStored) {
  make(kGptOss);
  write();
  const auto weights = load(DType::bf16);
  ASSERT_TRUE(weights) << weights.error().message;
  for (const MlpWeights& expert : weights->layers[0].moe.experts) {
    EXPECT_EQ(expert.gate_up.format, PackFormat::mxfp4);
    EXPECT_EQ(expert.down.format, PackFormat::mxfp4);
  }
  EXPECT_EQ(weights->layers[0].attention.qkv.format, PackFormat::bf16);
}

TEST_F(GptOssLoadTest, WhatIsRefused) {
  make(kGptOss);
  const auto good = tensors_;
  const std::string blocks = std::string(kExperts) + "down_proj_blocks",
                    scales = std::string(kExperts) + "down_proj_scales";
  tensors_.erase(scales);
  expect_load_refused(blocks + "' has no scales", ErrorCode::data_loss);
  tensors_ = good;
  tensors_[scales].bytes[5] = 255;
  expect_load_refused(blocks + "' has the scale nan", ErrorCode::data_loss);
  tensors_ = good;
  tensors_[scales].shape = {3, 2 * kHidden, 1};
  expect_load_refused(scales, ErrorCode::data_loss);
  tensors_ = good;
  tensors_[blocks].dtype = "I8";
  expect_load_refused(blocks + "' is I8", ErrorCode::unsupported);
  tensors_ = good;
  tensors_[blocks].shape = {3, kHidden, 4, 8};
  expect_load_refused(blocks + "' has the shape", ErrorCode::data_loss);
}

}  // namespace
}  // namespace tandem
