#include "model/model_weights.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>

#include "base/bf16.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/matrix_reader.h"
#include "checkpoint/safetensors_writer.h"
#include "kernels/packed_layout.h"
#include "model/load_plan.h"

namespace tandem {
namespace {

constexpr const char* kV3 =
    R"({"model_type":"deepseek_v3","vocab_size":70,"hidden_size":40,"num_hidden_layers":3,
 "num_attention_heads":2,"q_lora_rank":24,"kv_lora_rank":32,"qk_nope_head_dim":16,"qk_rope_head_dim":8,"v_head_dim":12,
 "intermediate_size":72,"moe_intermediate_size":20,"n_routed_experts":4,"num_experts_per_tok":2,"n_group":2,"topk_group":1,
 "n_shared_experts":2,"first_k_dense_replace":1,"num_nextn_predict_layers":1})";
constexpr const char* kGranite =
    R"({"model_type":"granitemoe","vocab_size":70,"hidden_size":40,"num_hidden_layers":2,
 "num_attention_heads":4,"num_key_value_heads":2,"intermediate_size":24,"num_local_experts":3,"num_experts_per_tok":2,
 "tie_word_embeddings":true})";
constexpr const char* kMixtral =
    R"({"model_type":"mixtral","vocab_size":70,"hidden_size":40,"num_hidden_layers":2,
 "num_attention_heads":4,"num_key_value_heads":2,"intermediate_size":24,"num_local_experts":3,"num_experts_per_tok":2})";
// Dimensions that no 128 block divides; gate and up together (640 rows) would divide, and neither half does.
constexpr const char* kQwenFp8 =
    R"({"model_type":"qwen3_moe","vocab_size":70,"hidden_size":200,"num_hidden_layers":2,
 "num_attention_heads":4,"num_key_value_heads":2,"head_dim":40,"moe_intermediate_size":320,"num_experts":2,
 "num_experts_per_tok":1,"mlp_only_layers":[1],"intermediate_size":192,
 "quantization_config":{"quant_method":"fp8","weight_block_size":[128,128]}})";

ModelConfig config_of(const char* text) {
  auto config = parse_model_config(text, "config.json");
  if (!config) ADD_FAILURE() << config.error().message;
  return config.value_or(ModelConfig{});
}

// A number that differs for every tensor and element, and that bfloat16 must round.
float value_of(const std::string& tensor, size_t index) {
  const auto seed = static_cast<double>(std::hash<std::string>{}(tensor) % 9973);
  return static_cast<float>(std::sin(seed + static_cast<double>(index) * 0.7301));
}

class ModelWeightsTest : public ::testing::Test {
 protected:
  struct Tensor {
    std::string dtype = "F32";
    std::vector<uint64_t> shape;
    std::vector<float> values;  // what a reader must see
    std::vector<uint8_t> bytes;
  };

  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / ("tandem_weights_" + std::to_string(getpid()));
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  // Every tensor that the plan claims. With `blocks`, those that fp8 releases quantise are F8_E4M3 with
  // scales.
  void make(const char* text, bool blocks = false) {
    config_ = config_of(text);
    ModelWeights unused;
    const LoadPlan plan = make_load_plan(config_, unused);
    for (const TensorClaim& claim : plan.claims()) {
      Tensor tensor;
      tensor.shape = claim.shape;
      tensor.values.resize(claim.elements());
      for (size_t i = 0; i < tensor.values.size(); ++i) tensor.values[i] = value_of(claim.tensor, i);
      if (blocks && claim.block_quantized) {
        quantize(claim.tensor, tensor);
      } else {
        set_bytes(tensor);
      }
      tensors_[claim.tensor] = std::move(tensor);
    }
  }

  static void set_bytes(Tensor& tensor) {
    tensor.bytes.resize(tensor.values.size() * 4);
    std::memcpy(tensor.bytes.data(), tensor.values.data(), tensor.bytes.size());
  }

  void quantize(const std::string& name, Tensor& tensor) {
    const uint64_t rows = tensor.shape[0], cols = tensor.shape[1];
    const uint64_t scale_rows = (rows + 127) / 128, scale_cols = (cols + 127) / 128;
    Tensor scales;
    scales.shape = {scale_rows, scale_cols};
    for (uint64_t i = 0; i < scale_rows * scale_cols; ++i)
      scales.values.push_back(0.01f * static_cast<float>(i + 1));
    set_bytes(scales);
    tensor.dtype = "F8_E4M3";
    tensor.bytes.resize(rows * cols);
    for (uint64_t i = 0; i < rows * cols; ++i) {
      tensor.bytes[i] = static_cast<uint8_t>(std::hash<std::string>{}(name) % 64 + i * 29 % 60);
      tensor.values[i] =
          f8_e4m3_to_float(tensor.bytes[i]) * scales.values[i / cols / 128 * scale_cols + i % cols / 128];
    }
    tensors_[name + "_scale_inv"] = std::move(scales);
  }

  // In two files without an index.
  void write() {
    SafetensorsWriter writers[2];
    size_t count = 0;
    for (const auto& [name, tensor] : tensors_) {
      writers[count++ % 2].add(name, tensor.dtype, tensor.shape, std::as_bytes(std::span(tensor.bytes)));
    }
    ASSERT_TRUE(writers[0].write(folder_ / "model-00001-of-00002.safetensors", 1));
    ASSERT_TRUE(writers[1].write(folder_ / "model-00002-of-00002.safetensors"));
  }

  Result<ModelWeights> load(DType dtype = DType::f32, HeldParts held = {}, int threads = 1) {
    ThreadPool pool(threads);
    return load_model_weights(folder_, config_, table_, pool,
                              {.compute_dtype = dtype, .held = held, .show_progress = false});
  }

  void expect_load_refused(const std::string& word, ErrorCode code) {
    write();
    const auto weights = load();
    ASSERT_FALSE(weights.has_value()) << word;
    EXPECT_EQ(weights.error().code, code) << weights.error().message;
    EXPECT_NE(weights.error().message.find(word), std::string::npos) << weights.error().message;
  }

  // Rows of tensors one below the other.
  std::vector<float> rows(std::initializer_list<std::string> names) {
    std::vector<float> all;
    for (const std::string& name : names) {
      if (!tensors_.contains(name)) ADD_FAILURE() << name;
      all.insert(all.end(), tensors_[name].values.begin(), tensors_[name].values.end());
    }
    return all;
  }

  void expect_packed(const PackedWeight& weight, PackArrangement arrangement,
                     const std::vector<float>& values, uint32_t cols) {
    ASSERT_FALSE(weight.empty());
    const auto row_count = static_cast<uint32_t>(values.size() / cols);
    ASSERT_EQ(weight.rows, row_count);
    ASSERT_EQ(weight.cols, cols);
    ASSERT_EQ(weight.arrangement, arrangement);
    ASSERT_EQ(weight.bytes, table_.packed_bytes(weight.format, arrangement, row_count, cols));
    std::vector<std::byte> expected(weight.bytes);
    table_.pack(weight.format, arrangement, row_count, cols, 0, row_count, DType::f32, values.data(),
                expected.data());
    EXPECT_EQ(std::memcmp(weight.data, expected.data(), weight.bytes), 0);
  }

  std::filesystem::path folder_;
  std::map<std::string, Tensor> tensors_;
  ModelConfig config_;
  const KernelTable& table_ = *runnable_kernel_tables().back();
};

constexpr PackArrangement kPlain = PackArrangement::plain, kGateUp = PackArrangement::gate_up;

TEST_F(ModelWeightsTest, DeepseekV3) {
  make(kV3);
  // What released files carry besides: the prediction layer and a RoPE table.
  tensors_["model.layers.3.enorm.weight"] = tensors_["model.norm.weight"];
  tensors_["model.layers.0.self_attn.rotary_emb.inv_freq"] = tensors_["model.norm.weight"];
  write();
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const int threads : {1, 3}) {
      const auto weights = load(dtype, {}, threads);
      ASSERT_TRUE(weights.has_value()) << weights.error().message;
      const std::string l = "model.layers.1.", attn = l + "self_attn.", mlp = l + "mlp.";
      const LayerWeights& layer = weights->layers[1];
      expect_packed(layer.attention.q_a, kPlain, rows({attn + "q_a_proj.weight"}), 40);
      expect_packed(layer.attention.q_b, kPlain, rows({attn + "q_b_proj.weight"}), 24);
      expect_packed(layer.attention.kv_a, kPlain, rows({attn + "kv_a_proj_with_mqa.weight"}), 40);
      expect_packed(layer.attention.output, kPlain, rows({attn + "o_proj.weight"}), 24);
      EXPECT_EQ(layer.attention.q_a_norm, rows({attn + "q_a_layernorm.weight"}));
      EXPECT_EQ(layer.attention.kv_a_norm, rows({attn + "kv_a_layernorm.weight"}));
      EXPECT_EQ(layer.attention.post_attention_norm, rows({l + "post_attention_layernorm.weight"}));
      const std::vector<float> kv_b =
          rows({attn + "kv_b_proj.weight"});  // heads * (16 nope + 12 v) rows of 32
      for (size_t head = 0; head < 2; ++head) {
        std::vector<float> key(32 * 16), value(12 * 32);
        for (size_t row = 0; row < 16; ++row) {
          for (size_t col = 0; col < 32; ++col) key[col * 16 + row] = kv_b[(head * 28 + row) * 32 + col];
        }
        for (size_t i = 0; i < value.size(); ++i) value[i] = kv_b[(head * 28 + 16) * 32 + i];
        expect_packed(layer.attention.key_absorb[head], kPlain, key, 16);
        expect_packed(layer.attention.value_absorb[head], kPlain, value, 32);
      }
      expect_packed(layer.moe.router, kPlain, rows({mlp + "gate.weight"}), 40);
      EXPECT_EQ(layer.moe.router_bias, rows({mlp + "gate.e_score_correction_bias"}));
      ASSERT_EQ(layer.moe.experts.size(), 4u);
      expect_packed(layer.moe.experts[3].gate_up, kGateUp,
                    rows({mlp + "experts.3.gate_proj.weight", mlp + "experts.3.up_proj.weight"}), 40);
      expect_packed(layer.moe.experts[3].down, kPlain, rows({mlp + "experts.3.down_proj.weight"}), 20);
      expect_packed(layer.moe.shared.gate_up, kGateUp,
                    rows({mlp + "shared_experts.gate_proj.weight", mlp + "shared_experts.up_proj.weight"}),
                    40);
      EXPECT_EQ(layer.moe.shared.gate_up.rows, 80u);
      EXPECT_TRUE(layer.dense.empty());
      const LayerWeights& dense = weights->layers[0];
      EXPECT_TRUE(dense.moe.router.empty() && dense.moe.experts.empty() && dense.moe.shared.empty());
      expect_packed(dense.dense.down, kPlain, rows({"model.layers.0.mlp.down_proj.weight"}), 72);
      expect_packed(weights->head, kPlain, rows({"lm_head.weight"}), 40);
      EXPECT_EQ(weights->final_norm, rows({"model.norm.weight"}));
      const std::vector<float> embedding = rows({"model.embed_tokens.weight"});
      if (dtype == DType::f32) {
        EXPECT_EQ(weights->embedding_f32, embedding);
        EXPECT_TRUE(weights->embedding_bf16.empty());
      } else {
        ASSERT_EQ(weights->embedding_bf16.size(), embedding.size());
        EXPECT_TRUE(weights->embedding_f32.empty());
        for (size_t i = 0; i < embedding.size(); ++i)
          ASSERT_EQ(weights->embedding_bf16[i], to_bf16(embedding[i]).bits);
      }
    }
  }
}

TEST_F(ModelWeightsTest, GraniteStackedAndTied) {
  make(kGranite);
  ASSERT_FALSE(tensors_.contains("lm_head.weight"));
  tensors_["lm_head.weight"] = tensors_["model.embed_tokens.weight"];  // some files carry the copy
  write();
  const auto weights = load();
  ASSERT_TRUE(weights.has_value()) << weights.error().message;
  expect_packed(weights->head, kPlain, rows({"model.embed_tokens.weight"}), 40);
  const std::string l = "model.layers.1.";
  expect_packed(
      weights->layers[1].attention.qkv, kPlain,
      rows({l + "self_attn.q_proj.weight", l + "self_attn.k_proj.weight", l + "self_attn.v_proj.weight"}),
      40);
  const std::vector<float> input = rows({l + "block_sparse_moe.input_linear.weight"});    // [3, 48, 40]
  const std::vector<float> output = rows({l + "block_sparse_moe.output_linear.weight"});  // [3, 40, 24]
  const MlpWeights& expert = weights->layers[1].moe.experts[2];
  expect_packed(expert.gate_up, kGateUp, {input.begin() + 2 * 48 * 40, input.end()}, 40);
  expect_packed(expert.down, kPlain, {output.begin() + 2 * 40 * 24, output.end()}, 24);
}

TEST_F(ModelWeightsTest, MixtralNames) {
  make(kMixtral);
  write();
  const auto weights = load();
  ASSERT_TRUE(weights.has_value()) << weights.error().message;
  const std::string expert = "model.layers.0.block_sparse_moe.experts.1.";
  expect_packed(weights->layers[0].moe.experts[1].gate_up, kGateUp,
                rows({expert + "w1.weight", expert + "w3.weight"}), 40);
  expect_packed(weights->layers[0].moe.experts[1].down, kPlain, rows({expert + "w2.weight"}), 24);
}

TEST_F(ModelWeightsTest, BlockScalesOfFusedHalvesThatDoNotDivide) {
  make(kQwenFp8, true);
  write();
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const auto weights = load(dtype);
    ASSERT_TRUE(weights.has_value()) << weights.error().message;
    const std::string expert = "model.layers.0.mlp.experts.1.", attn = "model.layers.1.self_attn.";
    expect_packed(weights->layers[0].moe.experts[1].gate_up, kGateUp,
                  rows({expert + "gate_proj.weight", expert + "up_proj.weight"}), 200);
    expect_packed(weights->layers[0].moe.experts[1].down, kPlain, rows({expert + "down_proj.weight"}), 320);
    expect_packed(weights->layers[1].dense.gate_up, kGateUp,
                  rows({"model.layers.1.mlp.gate_proj.weight", "model.layers.1.mlp.up_proj.weight"}), 200);
    expect_packed(weights->layers[1].attention.qkv, kPlain,
                  rows({attn + "q_proj.weight", attn + "k_proj.weight", attn + "v_proj.weight"}), 200);
    EXPECT_EQ(weights->layers[1].attention.k_norm, rows({attn + "k_norm.weight"}));
  }
}

// Matrices of several tasks: their borders lie inside a source (gate ends at row 5000 of 10000).
TEST_F(ModelWeightsTest, LargeMatricesInPieces) {
  make(
      R"({"model_type":"mixtral","vocab_size":9001,"hidden_size":64,"num_hidden_layers":1,"num_attention_heads":2,
    "num_key_value_heads":1,"intermediate_size":5000,"num_local_experts":2,"num_experts_per_tok":1})");
  write();
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const auto weights = load(dtype, {}, 2);
    ASSERT_TRUE(weights.has_value()) << weights.error().message;
    const std::string expert = "model.layers.0.block_sparse_moe.experts.1.";
    expect_packed(weights->layers[0].moe.experts[1].gate_up, kGateUp,
                  rows({expert + "w1.weight", expert + "w3.weight"}), 64);
    expect_packed(weights->layers[0].moe.experts[1].down, kPlain, rows({expert + "w2.weight"}), 5000);
    expect_packed(weights->head, kPlain, rows({"lm_head.weight"}), 64);
    const std::vector<float> embedding = rows({"model.embed_tokens.weight"});
    if (dtype == DType::f32) {
      EXPECT_EQ(weights->embedding_f32, embedding);
    } else {
      ASSERT_EQ(weights->embedding_bf16.size(), embedding.size());
      EXPECT_EQ(weights->embedding_bf16.back(), to_bf16(embedding.back()).bits);
    }
  }
}

TEST_F(ModelWeightsTest, TooLittleMemoryIsSaidBeforeReading) {
  make(kMixtral);
  write();
  ThreadPool pool(1);
  testing::internal::CaptureStderr();
  const auto weights = load_model_weights(
      folder_, config_, table_, pool,
      {.compute_dtype = DType::f32, .held = {}, .show_progress = true, .memory_limit = 1000});
  const std::string log = testing::internal::GetCapturedStderr();
  ASSERT_FALSE(weights.has_value());
  EXPECT_EQ(weights.error().code, ErrorCode::resource_exhausted);
  EXPECT_NE(weights.error().message.find("need "), std::string::npos) << weights.error().message;
  EXPECT_NE(weights.error().message.find("1000 bytes"), std::string::npos) << weights.error().message;
  EXPECT_NE(log.find("experts"), std::string::npos) << log;
  EXPECT_EQ(log.find("loading:"), std::string::npos) << log;
}

// Shares of the experts: a rank has its own with the bits of the whole, nothing of the others, and the bytes
// of all shares are those of all experts. One family with a tensor for each expert, one with all experts in a
// tensor.
TEST_F(ModelWeightsTest, RankHoldsOnlyItsExperts) {
  for (const char* family : {kV3, kGranite}) {
    tensors_.clear();
    make(family);
    write();
    HeldParts parts{.attention = false, .experts = true, .router = false, .shared_experts = false};
    const auto whole = load(DType::f32, parts);
    ASSERT_TRUE(whole.has_value()) << whole.error().message;
    const auto num_experts = config_.router.num_experts;
    size_t bytes = 0;
    for (uint32_t rank = 0; rank < 2; ++rank) {
      parts.share.experts = {expert_share(num_experts, rank, 2)};
      const auto share = load(DType::f32, parts);
      ASSERT_TRUE(share.has_value()) << share.error().message;
      bytes += share->resident_bytes;
      for (size_t layer = 0; layer < share->layers.size(); ++layer) {
        if (!config_.is_moe(static_cast<uint32_t>(layer))) continue;
        const auto& mine = share->layers[layer].moe.experts;
        const auto& all = whole->layers[layer].moe.experts;
        ASSERT_EQ(mine.size(), num_experts);
        for (uint32_t e = 0; e < num_experts; ++e) {
          ASSERT_EQ(mine[e].empty(), !parts.share.contains(e)) << e;
          ASSERT_EQ(mine[e].down.empty(), mine[e].empty());
          if (mine[e].empty()) continue;
          EXPECT_EQ(std::memcmp(mine[e].gate_up.data, all[e].gate_up.data, all[e].gate_up.bytes), 0);
          EXPECT_EQ(std::memcmp(mine[e].down.data, all[e].down.data, all[e].down.bytes), 0);
        }
      }
    }
    EXPECT_EQ(bytes, whole->resident_bytes);
  }
}

// Element [row, col] of a weight packed in float32.
float element(const PackedWeight& weight, uint32_t row, uint32_t col) {
  const PackedLayout layout{weight.format, weight.arrangement, weight.rows, weight.cols};
  float value;
  std::memcpy(&value,
              weight.data + layout.line(layout.panel_of(row), col) + layout.lane_of(row) * sizeof value,
              sizeof value);
  return value;
}

// Slices of the experts: a rank has its rows of gate and up and its columns of down, with the numbers of the
// whole, and no others.
TEST_F(ModelWeightsTest, RankHoldsOnlyItsSlices) {
  for (const char* family : {kV3, kGranite}) {
    tensors_.clear();
    make(family);
    write();
    HeldParts parts{.attention = false, .experts = true, .router = false, .shared_experts = false};
    const auto whole = load(DType::f32, parts);
    ASSERT_TRUE(whole.has_value()) << whole.error().message;
    const uint32_t num_experts = config_.router.num_experts, size = config_.moe_intermediate_size;
    const uint32_t slices = std::min(3u, num_granules(size));
    ASSERT_GT(slices, 1u);
    for (uint32_t rank = 0; rank < slices; ++rank) {
      parts.share.rows = slice_rows(size, rank, slices);
      parts.share.experts = {{1, num_experts}};
      const auto share = load(DType::f32, parts);
      ASSERT_TRUE(share.has_value()) << share.error().message;
      EXPECT_LT(share->resident_bytes, whole->resident_bytes);
      size_t held = 0;
      for (size_t layer = 0; layer < share->layers.size(); ++layer) {
        if (!config_.is_moe(static_cast<uint32_t>(layer))) continue;
        ASSERT_TRUE(share->layers[layer].moe.experts[0].empty());
        for (uint32_t e = 1; e < num_experts; ++e) {
          const MlpWeights& mine = share->layers[layer].moe.experts[e];
          const MlpWeights& all = whole->layers[layer].moe.experts[e];
          held += mine.gate_up.bytes + mine.down.bytes;
          const RowRange rows = parts.share.rows;
          ASSERT_EQ((RowRange{mine.row_begin, mine.row_end()}), rows);
          ASSERT_EQ(mine.gate_up.rows, 2 * rows.size());
          for (uint32_t i = 0; i < rows.size(); ++i) {
            for (uint32_t h = 0; h < config_.hidden_size; ++h) {
              ASSERT_EQ(element(mine.gate_up, i, h), element(all.gate_up, rows.begin + i, h));
              ASSERT_EQ(element(mine.gate_up, rows.size() + i, h),
                        element(all.gate_up, size + rows.begin + i, h));
              ASSERT_EQ(element(mine.down, h, i), element(all.down, h, rows.begin + i));
            }
          }
        }
      }
      EXPECT_EQ(held, share->resident_bytes) << "nothing else is held";
    }
  }
}

// Each part alone; together they are the whole, and no rank holds what it does not need.
TEST_F(ModelWeightsTest, RankHoldsOnlyItsParts) {
  make(kV3);
  write();
  const auto whole = load();
  const auto attention =
      load(DType::f32, {.attention = true, .experts = false, .router = false, .shared_experts = false});
  const auto experts =
      load(DType::f32, {.attention = false, .experts = true, .router = false, .shared_experts = false});
  const auto router =
      load(DType::f32, {.attention = false, .experts = false, .router = true, .shared_experts = false});
  const auto shared =
      load(DType::f32, {.attention = false, .experts = false, .router = false, .shared_experts = true});
  ASSERT_TRUE(whole && attention && experts && router && shared);
  EXPECT_EQ(
      attention->resident_bytes + experts->resident_bytes + router->resident_bytes + shared->resident_bytes,
      whole->resident_bytes);
  size_t expert_bytes = 0, router_bytes = 0;
  for (const LayerWeights& layer : whole->layers) {
    for (const MlpWeights& expert : layer.moe.experts)
      expert_bytes += expert.gate_up.bytes + expert.down.bytes;
    router_bytes += layer.moe.router.bytes + layer.moe.router_bias.size() * sizeof(float);
  }
  EXPECT_EQ(experts->resident_bytes, expert_bytes);
  EXPECT_EQ(router->resident_bytes, router_bytes);
  size_t stored = 0;
  for (const OwnedBuffer& buffer : experts->storage) stored += buffer.size();
  EXPECT_EQ(stored, expert_bytes);

  EXPECT_TRUE(experts->layers[1].moe.router.empty() && experts->layers[1].moe.router_bias.empty());
  EXPECT_TRUE(experts->layers[1].moe.shared.empty() && experts->head.empty());
  EXPECT_TRUE(experts->embedding_f32.empty() && experts->layers[0].dense.empty());
  EXPECT_TRUE(experts->layers[1].attention.key_absorb.empty());
  EXPECT_FALSE(experts->layers[1].moe.experts[0].empty());
  ASSERT_EQ(attention->layers[1].moe.experts.size(), 4u);
  EXPECT_TRUE(attention->layers[1].moe.experts[0].empty());
  EXPECT_FALSE(attention->layers[0].dense.empty());
}

TEST_F(ModelWeightsTest, WhatIsWrongIsNamed) {
  make(kV3);
  const std::map<std::string, Tensor> good = tensors_;
  const std::string expert = "model.layers.1.mlp.experts.3.up_proj.weight";

  tensors_.erase(expert);
  expect_load_refused("'" + expert + "' [20, 40] is missing", ErrorCode::not_found);

  tensors_ = good;
  std::swap(tensors_[expert].shape[0], tensors_[expert].shape[1]);
  expect_load_refused("'" + expert + "' has the shape [40, 20]; config.json calls for [20, 40]",
                      ErrorCode::data_loss);

  tensors_ = good;
  tensors_["model.layers.1.mlp.experts.4.up_proj.weight"] = tensors_[expert];
  expect_load_refused("'model.layers.1.mlp.experts.4.up_proj.weight' belongs to nothing",
                      ErrorCode::data_loss);

  // A dense layer that holds experts, and the reverse.
  tensors_ = good;
  tensors_["model.layers.0.mlp.experts.0.up_proj.weight"] = tensors_[expert];
  expect_load_refused("makes layer 0 a dense layer", ErrorCode::data_loss);
  tensors_ = good;
  tensors_["model.layers.1.mlp.up_proj.weight"] = tensors_[expert];
  expect_load_refused("makes layer 1 a MoE layer", ErrorCode::data_loss);

  // Layer 3 is the prediction layer that config.json announces; it announces no second one.
  tensors_ = good;
  tensors_["model.layers.4.norm.weight"] = tensors_["model.norm.weight"];
  expect_load_refused("'model.layers.4.norm.weight' belongs to nothing: config.json says 3 layers",
                      ErrorCode::data_loss);

  tensors_ = good;
  tensors_[expert + "_scale_inv"] = tensors_["model.norm.weight"];
  expect_load_refused("up_proj.weight_scale_inv' belongs to nothing", ErrorCode::data_loss);

  tensors_ = good;
  tensors_[expert].dtype = "F8_E4M3";
  tensors_[expert].bytes.resize(800);
  expect_load_refused("has no weight_scale_inv", ErrorCode::data_loss);

  tensors_ = good;
  tensors_[expert].dtype = "I32";
  expect_load_refused("'" + expert + "' is I32", ErrorCode::unsupported);
  // The same file serves a rank that does not need that tensor.
  EXPECT_TRUE(load(DType::f32, {.attention = true, .experts = false, .router = true, .shared_experts = true})
                  .has_value());

  tensors_ = good;
  write();
  EXPECT_EQ(load(DType::f16).error().code, ErrorCode::unsupported);
  EXPECT_TRUE(load().has_value());
}

// Files that transformers wrote: names, stacking and shards as they really are.
TEST(ModelWeightsFixtures, EveryFamilyLoads) {
  ThreadPool pool(1);
  for (const char* name :
       {"deepseek_v2", "deepseek_v2_lite", "deepseek_v3", "granitemoe", "kimi_k2", "mixtral", "moonlight",
        "qwen3_moe", "qwen3_moe_sparse_step", "../../models/arith"}) {
    const std::string folder = std::string("tests/fixtures/") + name;
    const auto text = read_config_json(folder);
    ASSERT_TRUE(text.has_value()) << text.error().message;
    const auto config = parse_model_config(*text, folder + "/config.json");
    ASSERT_TRUE(config.has_value()) << config.error().message;
    const auto weights =
        load_model_weights(folder, *config, *runnable_kernel_tables().back(), pool,
                           {.compute_dtype = DType::f32, .held = {}, .show_progress = false});
    ASSERT_TRUE(weights.has_value()) << weights.error().message;
    EXPECT_GT(weights->resident_bytes, 0u);
  }
}

}  // namespace
}  // namespace tandem
