// gpt-oss' settings: as released, with what is left out, and what is refused.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "model/inspect.h"
#include "model/model_config.h"

namespace tandem {
namespace {

// openai/gpt-oss-20b but for layer_types, which follow from their default.
constexpr const char* kReleased =
    R"("model_type":"gpt_oss","architectures":["GptOssForCausalLM"],"attention_bias":true,"attention_dropout":0.0,
 "eos_token_id":200002,"experts_per_token":4,"head_dim":64,"hidden_act":"silu","hidden_size":2880,
 "initial_context_length":4096,"intermediate_size":2880,"max_position_embeddings":131072,"num_attention_heads":64,
 "num_experts_per_tok":4,"num_hidden_layers":24,"num_key_value_heads":8,"num_local_experts":32,"rms_norm_eps":1e-05,
 "output_router_logits":false,"pad_token_id":199999,"rope_theta":150000,"sliding_window":128,"swiglu_limit":7.0,
 "tie_word_embeddings":false,"use_cache":true,"vocab_size":201088,"torch_dtype":"bfloat16")";
constexpr const char* kYarn =
    R"(,"rope_scaling":{"beta_fast":32.0,"beta_slow":1.0,"factor":32.0,"original_max_position_embeddings":4096,
 "rope_type":"yarn","truncate":false})";
constexpr const char* kMxfp4 =
    R"(,"quantization_config":{"quant_method":"mxfp4","modules_to_not_convert":["model.layers.*.self_attn"]})";

Result<ModelConfig> parse(const std::string& text) {
  return parse_model_config("{" + text + "}", "config.json");
}

TEST(GptOssConfig, AsReleased) {
  const auto parsed = parse(std::string(kReleased) + kYarn + kMxfp4);
  ASSERT_TRUE(parsed) << parsed.error().message;
  const ModelConfig& config = *parsed;
  const AttentionConfig& attention = config.attention;
  EXPECT_EQ(attention.head_dim, 64u);
  EXPECT_EQ(attention.softmax_scale, 0.125f);
  EXPECT_TRUE(attention.qkv_bias && attention.output_bias && attention.has_sinks);
  ASSERT_EQ(attention.windows.size(), 24u);
  for (uint32_t layer = 0; layer < 24; ++layer)
    EXPECT_EQ(attention.window(layer), layer % 2 == 0 ? 128u : 0u);
  EXPECT_EQ(attention.rope.layout, RopeLayout::half_split);
  EXPECT_NEAR(attention.rope.cos_sin_factor(), 1.34657, 1e-5);
  ASSERT_TRUE(attention.rope.yarn);
  EXPECT_FALSE(attention.rope.yarn->truncate);
  // Between the bounds 8.0928 and 17.398, which are not rounded: pair 9 is a share of both frequencies.
  const std::vector<double> frequencies = attention.rope.inverse_frequencies();
  const double plain = std::pow(150000.0, -9.0 / 32), share = (9 - 8.0928) / (17.398 - 8.0928);
  EXPECT_NEAR(frequencies[9], plain / 32 * share + plain * (1 - share), plain * 1e-4);
  EXPECT_EQ(config.moe_intermediate_size, 2880u);
  EXPECT_EQ(config.swiglu_limit, 7.0f);
  EXPECT_EQ(config.swiglu_alpha, 1.702f);
  EXPECT_EQ(config.router.num_experts, 32u);
  EXPECT_EQ(config.router.top_k, 4u);
  EXPECT_EQ(config.router.score, RouterScore::top_k_logits);
  EXPECT_FALSE(config.router.has_bias);
  EXPECT_EQ(config.eos_token_ids, std::vector<int32_t>{200002});

  const InspectReport report = inspect_model(config);
  EXPECT_NEAR(static_cast<double>(report.parameters) / 1e9, 20.91, 0.006);
  EXPECT_NEAR(static_cast<double>(report.active_parameters) / 1e9, 3.61, 0.006);
  EXPECT_EQ(report.role(WeightRole::experts).bytes.at(DType::f4_e2m1), 24ull * 32 * 3 * 2880 * 2880 / 2);
  EXPECT_EQ(report.role(WeightRole::experts).bytes.at(DType::f8_e8m0), 24ull * 32 * 3 * 2880 * 2880 / 32);
  EXPECT_EQ(report.role(WeightRole::experts).bytes.at(DType::bf16), 24ull * 32 * 3 * 2880 * 2);
  EXPECT_EQ(report.kv_bytes_per_token, 12u * 2 * 8 * 64 * 2);  // the layers without a window
}

// As transformers saves it once dequantised: no quantization_config, any width.
TEST(GptOssConfig, ExpertsInBf16) {
  std::string text = std::string(kReleased) + kYarn;
  const auto released = parse(text);
  ASSERT_TRUE(released) << released.error().message;
  const InspectReport report = inspect_model(*released);
  EXPECT_NEAR(static_cast<double>(report.parameters) / 1e9, 20.91, 0.006);
  EXPECT_EQ(report.role(WeightRole::experts).bytes.at(DType::bf16),
            24ull * 32 * (3 * 2880 * 2880 + 3 * 2880) * 2);
  EXPECT_FALSE(report.role(WeightRole::experts).bytes.contains(DType::f4_e2m1));
  const std::string width = "\"intermediate_size\":2880";
  const auto odd = parse(text.replace(text.find(width), width.size(), "\"intermediate_size\":2881"));
  ASSERT_TRUE(odd) << odd.error().message;
  EXPECT_EQ(odd->moe_intermediate_size, 2881u);
}

TEST(GptOssConfig, LayersAsTheyAreNamed) {
  const std::string small =
      R"("model_type":"gpt_oss","vocab_size":64,"hidden_size":32,"num_hidden_layers":3,"num_attention_heads":4,
 "num_key_value_heads":2,"head_dim":16,"intermediate_size":32,"sliding_window":5)" +
      std::string(kYarn) + kMxfp4;
  const auto parsed =
      parse(small + R"(,"layer_types":["full_attention","full_attention","sliding_attention"])");
  ASSERT_TRUE(parsed) << parsed.error().message;
  EXPECT_EQ(parsed->attention.windows, (std::vector<uint32_t>{0, 0, 5}));
}

TEST(GptOssConfig, RefusedByName) {
  const auto refused = [](const std::string& text, const std::string& word) {
    const auto parsed = parse(text);
    ASSERT_FALSE(parsed) << word;
    EXPECT_NE(parsed.error().message.find(word), std::string::npos) << parsed.error().message;
  };
  const std::string whole = std::string(kReleased) + kYarn + kMxfp4;
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = whole;
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return text.replace(at, from.size(), to);
  };
  refused(with("\"mxfp4\"", R"("fp8","weight_block_size":[128,128])"),
          "is fp8, which is not implemented for gpt_oss");
  refused(with("\"mxfp4\"", "\"awq\""), "\"awq\"");
  refused(std::string(kReleased) + kMxfp4, "rope_scaling is absent");
  refused(with(R"("head_dim":64,)", ""), "head_dim");
  refused(with("\"intermediate_size\":2880", "\"intermediate_size\":2884"), "intermediate_size is 2884");
  refused(with("\"hidden_size\":2880", "\"hidden_size\":2882"), "hidden_size is 2882");
  refused(whole + R"(,"layer_types":["full_attention"])", "layer_types has 1 entries");
  refused(
      with("\"num_hidden_layers\":24", "\"num_hidden_layers\":1") + R"(,"layer_types":["chunked_attention"])",
      "'chunked_attention'");
  refused(with("\"swiglu_limit\":7.0", "\"swiglu_limit\":0"), "swiglu_limit");
}

}  // namespace
}  // namespace tandem
