#include "model/model_weights.h"

#include "base/bf16.h"
#include "checkpoint/checkpoint.h"
#include "model/model_weights_testing.h"

namespace tandem {
namespace {

using namespace weights_testing;

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

// Expert sizes of which a last block is partial, and the same checkpoint dequantised to bf16.
TEST_F(ModelWeightsTest, BlockScalesOfFusedHalvesThatDoNotDivide) {
  for (const uint32_t intermediate : {192u, 320u}) {
    std::string text = kQwenFp8;
    const std::string key = "\"moe_intermediate_size\":320";
    text.replace(text.find(key), key.size(), "\"moe_intermediate_size\":" + std::to_string(intermediate));
    tensors_.clear();
    make(text.c_str(), true);
    write();
    const std::string expert = "model.layers.0.mlp.experts.1.", attn = "model.layers.1.self_attn.";
    const auto check = [&](const ModelWeights& weights) {
      expect_packed(weights.layers[0].moe.experts[1].gate_up, kGateUp,
                    rows({expert + "gate_proj.weight", expert + "up_proj.weight"}), 200);
      expect_packed(weights.layers[0].moe.experts[1].down, kPlain, rows({expert + "down_proj.weight"}),
                    intermediate);
      expect_packed(weights.layers[1].dense.gate_up, kGateUp,
                    rows({"model.layers.1.mlp.gate_proj.weight", "model.layers.1.mlp.up_proj.weight"}), 200);
      expect_packed(weights.layers[1].attention.qkv, kPlain,
                    rows({attn + "q_proj.weight", attn + "k_proj.weight", attn + "v_proj.weight"}), 200);
      EXPECT_EQ(weights.layers[1].attention.k_norm, rows({attn + "k_norm.weight"}));
    };
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const auto weights = load(dtype, {}, 1, WeightStorage::dequantized);
      ASSERT_TRUE(weights.has_value()) << weights.error().message;
      check(*weights);
    }
    // A copy without blocks: what the reader of blocks saw, written as bf16, packs to the same bits.
    const auto quantized = load(DType::bf16, {}, 1, WeightStorage::dequantized);
    std::erase_if(tensors_, [](const auto& item) { return item.first.ends_with("_scale_inv"); });
    for (auto& [name, tensor] : tensors_) {
      tensor.dtype = "BF16";
      tensor.bytes.resize(tensor.values.size() * sizeof(uint16_t));
      for (size_t i = 0; i < tensor.values.size(); ++i) {
        const uint16_t bits = to_bf16(tensor.values[i]).bits;
        std::memcpy(tensor.bytes.data() + i * sizeof bits, &bits, sizeof bits);
      }
    }
    text = text.substr(0, text.rfind(',', text.find("\"quantization_config\""))) + "}";
    config_ = config_of(text.c_str());
    write();
    const auto copy = load(DType::bf16);
    ASSERT_TRUE(copy.has_value()) << copy.error().message;
    for (uint32_t id = 0; id < 2; ++id) {
      const MlpWeights &a = quantized->layers[0].moe.experts[id], &b = copy->layers[0].moe.experts[id];
      ASSERT_EQ(a.gate_up.bytes, b.gate_up.bytes);
      ASSERT_EQ(a.down.bytes, b.down.bytes);
      EXPECT_EQ(std::memcmp(a.gate_up.data, b.gate_up.data, a.gate_up.bytes), 0) << intermediate;
      EXPECT_EQ(std::memcmp(a.down.data, b.down.data, a.down.bytes), 0) << intermediate;
    }
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
  expect_load_refused("'" + expert + "' is F32 and has block scales beside it", ErrorCode::data_loss);

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
  for (const char* name : {"deepseek_v2", "deepseek_v2_lite", "deepseek_v3", "glm4_moe", "glm4_moe_lite",
                           "gpt_oss", "granitemoe", "kimi_k2", "mixtral", "moonlight", "olmoe", "qwen2_moe",
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
