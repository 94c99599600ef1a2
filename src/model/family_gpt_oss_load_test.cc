// gpt-oss' experts as they are loaded: alternating rows of gate and up, blocks of fp4 that stay as they are,
// numbers that lie turned, and biases, whole and in slices.
#include "base/bf16.h"
#include "model/model_weights_testing.h"

namespace tandem {
namespace {

using namespace weights_testing;

constexpr const char* kGptOss =
    R"({"model_type":"gpt_oss","vocab_size":70,"hidden_size":96,"num_hidden_layers":2,
 "num_attention_heads":4,"num_key_value_heads":2,"head_dim":16,"intermediate_size":64,"num_local_experts":3,
 "num_experts_per_tok":2,"rope_scaling":{"rope_type":"default"},"quantization_config":{"quant_method":"mxfp4"}})";
// As transformers saves it once dequantised; dimensions that no block divides.
constexpr const char* kNumbers =
    R"({"model_type":"gpt_oss","vocab_size":70,"hidden_size":90,"num_hidden_layers":2,
 "num_attention_heads":4,"num_key_value_heads":2,"head_dim":16,"intermediate_size":52,"num_local_experts":3,
 "num_experts_per_tok":2,"rope_scaling":{"rope_type":"default"}})";
// Experts of the same dimensions in rows that lie as they are used: gate's, then up's.
constexpr const char* kRows =
    R"({"model_type":"granitemoe","vocab_size":70,"hidden_size":90,"num_hidden_layers":2,
 "num_attention_heads":3,"num_key_value_heads":3,"intermediate_size":52,"num_local_experts":3,"num_experts_per_tok":2})";
constexpr uint32_t kHidden = 96, kWidth = 64;
constexpr const char* kExperts = "model.layers.1.mlp.experts.";

class GptOssLoadTest : public ModelWeightsTest {
 protected:
  const std::vector<float>& values(const std::string& name) { return tensors_.at(kExperts + name).values; }
  bool is_turned() const { return config_.quantization.method.empty(); }
  uint32_t hidden() const { return config_.hidden_size; }
  uint32_t width() const { return config_.moe_intermediate_size; }

  // Of expert e, rows [begin, end) of gate, then of up.
  std::vector<float> gate_up(uint32_t e, RowRange rows) {
    if (is_turned()) return turned_gate_up(e, rows);
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
  std::vector<float> turned_gate_up(uint32_t e, RowRange rows) {
    const std::vector<float>& all = values("gate_up_proj");  // [experts, hidden, 2 * width]
    std::vector<float> out;
    for (const uint32_t half : {0u, 1u}) {
      for (uint32_t r = rows.begin; r < rows.end; ++r) {
        for (uint32_t h = 0; h < hidden(); ++h)
          out.push_back(all[(size_t{e} * hidden() + h) * 2 * width() + 2 * r + half]);
      }
    }
    return out;
  }
  std::vector<float> turned_down(uint32_t e, RowRange rows) {
    const std::vector<float>& all = values("down_proj");  // [experts, width, hidden]
    std::vector<float> out;
    for (uint32_t h = 0; h < hidden(); ++h) {
      for (uint32_t r = rows.begin; r < rows.end; ++r)
        out.push_back(all[(size_t{e} * width() + r) * hidden() + h]);
    }
    return out;
  }
  std::vector<float> down(uint32_t e, RowRange rows) {
    if (is_turned()) return turned_down(e, rows);
    const std::vector<float>& all = values("down_proj_blocks");
    std::vector<float> out;
    for (uint32_t h = 0; h < kHidden; ++h) {
      const auto from = all.begin() + (size_t{e} * kHidden + h) * kWidth;
      out.insert(out.end(), from + rows.begin, from + rows.end);
    }
    return out;
  }
  void expect_expert(const MlpWeights& expert, uint32_t e, RowRange rows) {
    expect_packed(expert.gate_up, PackArrangement::gate_up, gate_up(e, rows), hidden());
    expect_packed(expert.down, PackArrangement::plain, down(e, rows), rows.size());
    std::vector<float> bias;
    for (const uint32_t half : {0u, 1u}) {
      for (uint32_t r = rows.begin; r < rows.end; ++r)
        bias.push_back(values("gate_up_proj_bias")[size_t{e} * 2 * width() + 2 * r + half]);
    }
    EXPECT_EQ(expert.gate_up_bias, bias);
    const auto first = values("down_proj_bias").begin() + size_t{e} * hidden();
    EXPECT_EQ(expert.down_bias,
              rows.begin == 0 ? std::vector<float>(first, first + hidden()) : std::vector<float>());
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

TEST_F(GptOssLoadTest, NumbersThatLieTurned) {
  make(kNumbers);
  write();
  const auto weights = load();
  ASSERT_TRUE(weights) << weights.error().message;
  for (uint32_t e = 0; e < 3; ++e) expect_expert(weights->layers[1].moe.experts[e], e, {0, width()});
  HeldParts parts{.attention = false, .experts = true, .router = false, .shared_experts = false};
  for (uint32_t rank = 0; rank < 3; ++rank) {
    parts.share.rows = slice_rows(width(), rank, 3);
    parts.share.experts = {{1, 3}};
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const auto share = load(dtype, parts, 3);
      ASSERT_TRUE(share) << share.error().message;
      EXPECT_TRUE(share->layers[1].moe.experts[0].empty());
      for (const uint32_t e : {1u, 2u}) expect_expert(share->layers[1].moe.experts[e], e, parts.share.rows);
    }
  }
}

// What is stored as BF16 or F16 is read as it is: the same packed bytes as from rounded float32.
TEST_F(GptOssLoadTest, NumbersOfSixteenBits) {
  make(kNumbers);
  for (const char* name : {"gate_up_proj", "down_proj"}) {
    Tensor& tensor = tensors_[kExperts + std::string(name)];
    tensor.dtype = "BF16";
    tensor.bytes.resize(tensor.values.size() * 2);
    for (size_t i = 0; i < tensor.values.size(); ++i) {
      const uint16_t bits = to_bf16(tensor.values[i]).bits;
      tensor.values[i] = to_float(bf16{bits});
      std::memcpy(tensor.bytes.data() + 2 * i, &bits, 2);
    }
  }
  write();
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const auto weights = load(dtype);
    ASSERT_TRUE(weights) << weights.error().message;
    for (uint32_t e = 0; e < 3; ++e) expect_expert(weights->layers[1].moe.experts[e], e, {0, width()});
  }
}

// Quantised at load they are, byte for byte, what a family has whose rows lie as they are used; in slices,
// too, whose scales are those of whole rows.
TEST_F(GptOssLoadTest, NumbersQuantised) {
  make(kNumbers);
  write();
  std::map<std::string, Tensor> turned = tensors_;
  const ModelConfig config = config_;
  std::vector<float> gate_ups, downs;
  for (uint32_t e = 0; e < 3; ++e) {
    const std::vector<float> first = gate_up(e, {0, width()}), second = down(e, {0, width()});
    gate_ups.insert(gate_ups.end(), first.begin(), first.end());
    downs.insert(downs.end(), second.begin(), second.end());
  }
  HeldParts slice{.attention = false, .experts = true, .router = false, .shared_experts = false};
  slice.share.rows = slice_rows(width(), 1, 2);
  for (const WeightStorage storage :
       {WeightStorage::int8, WeightStorage::fp8, WeightStorage::mxfp8, WeightStorage::mxfp4}) {
    for (const HeldParts& held : {HeldParts{}, slice}) {
      SCOPED_TRACE(weight_storage_name(storage));
      tensors_ = turned;
      config_ = config;
      write();
      const auto weights = load(DType::bf16, held, 1, storage);
      ASSERT_TRUE(weights) << weights.error().message;
      tensors_.clear();
      make(kRows);
      const std::string stack = "model.layers.1.block_sparse_moe.";
      for (const auto& [name, values] : {std::pair(stack + "input_linear.weight", &gate_ups),
                                         std::pair(stack + "output_linear.weight", &downs)}) {
        ASSERT_EQ(tensors_.at(name).values.size(), values->size());
        tensors_[name].values = *values;
        set_bytes(tensors_[name]);
      }
      write();
      const auto rows = load(DType::bf16, held, 1, storage);
      ASSERT_TRUE(rows) << rows.error().message;
      for (uint32_t e = 0; e < 3; ++e) {
        const MlpWeights &got = weights->layers[1].moe.experts[e], &wanted = rows->layers[1].moe.experts[e];
        EXPECT_EQ(got.gate_up.format, quantized_format(storage));
        for (const auto& [a, b] :
             {std::pair(&got.gate_up, &wanted.gate_up), std::pair(&got.down, &wanted.down)}) {
          ASSERT_EQ(a->bytes, b->bytes);
          EXPECT_EQ(std::memcmp(a->data, b->data, a->bytes), 0);
        }
      }
    }
  }
}

TEST_F(GptOssLoadTest, TheOtherFormIsNamed) {
  make(kNumbers);
  const auto numbers = tensors_;
  tensors_.erase(std::string(kExperts) + "gate_up_proj");
  expect_load_refused("quant_method mxfp4, it reads gate_up_proj_blocks", ErrorCode::not_found);
  tensors_.clear();
  make(kGptOss);
  tensors_.erase(std::string(kExperts) + "gate_up_proj_blocks");
  expect_load_refused("without quantization_config reads gate_up_proj", ErrorCode::not_found);
  config_ = config_of(kNumbers);
  tensors_ = numbers;
  tensors_[std::string(kExperts) + "down_proj"].shape = {3, 90, 52};
  expect_load_refused("down_proj' has the shape [3, 90, 52]", ErrorCode::data_loss);
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
