#include "model/model_config.h"

#include <gtest/gtest.h>

#include <cmath>

#include "model/model_config_testing.h"
#include "model/rope_config.h"

namespace tandem {
namespace {

using namespace config_testing;

// The settings of released models, as JSON text without the closing brace: a test adds its own keys.
constexpr const char* kV3 =
    R"({"model_type":"deepseek_v3","vocab_size":129280,"hidden_size":7168,"num_hidden_layers":61,
 "num_attention_heads":128,"num_key_value_heads":128,"q_lora_rank":1536,"kv_lora_rank":512,"qk_nope_head_dim":128,
 "qk_rope_head_dim":64,"v_head_dim":128,"intermediate_size":18432,"moe_intermediate_size":2048,"n_routed_experts":256,
 "num_experts_per_tok":8,"n_group":8,"topk_group":4,"n_shared_experts":1,"first_k_dense_replace":3,"moe_layer_freq":1,
 "norm_topk_prob":true,"routed_scaling_factor":2.5,"scoring_func":"sigmoid","topk_method":"noaux_tc","rms_norm_eps":1e-06,
 "max_position_embeddings":163840,"num_nextn_predict_layers":1,"bos_token_id":0,"eos_token_id":1,"hidden_act":"silu",
 "torch_dtype":"bfloat16","rope_theta":10000,"rope_scaling":{"type":"yarn","factor":40,"beta_fast":32,"beta_slow":1,
 "mscale":1.0,"mscale_all_dim":1.0,"original_max_position_embeddings":4096},
 "quantization_config":{"quant_method":"fp8","fmt":"e4m3","activation_scheme":"dynamic","weight_block_size":[128,128]})";

// Each family with nothing but what it cannot do without.
constexpr const char* kBareV2 =
    R"({"model_type":"deepseek_v2","vocab_size":512,"hidden_size":64,"num_hidden_layers":3,
 "num_attention_heads":4,"moe_intermediate_size":32,"num_experts_per_tok":6)";
constexpr const char* kBareV3 =
    R"({"model_type":"deepseek_v3","vocab_size":512,"hidden_size":64,"num_hidden_layers":5,
 "num_attention_heads":4,"moe_intermediate_size":32,"intermediate_size":96)";
constexpr const char* kBareQwen3 =
    R"({"model_type":"qwen3_moe","vocab_size":512,"hidden_size":64,"num_hidden_layers":4,
 "num_attention_heads":8)";
constexpr const char* kBareMixtral =
    R"({"model_type":"mixtral","vocab_size":512,"hidden_size":64,"num_hidden_layers":2,
 "num_attention_heads":8)";
constexpr const char* kBareGranite =
    R"({"model_type":"granitemoe","vocab_size":512,"hidden_size":64,"num_hidden_layers":2,
 "num_attention_heads":8,"intermediate_size":48)";

constexpr const char* kBareOlmoe =
    R"({"model_type":"olmoe","vocab_size":512,"hidden_size":64,"num_hidden_layers":2,
 "num_attention_heads":8)";

constexpr const char* kBareQwen2 =
    R"({"model_type":"qwen2_moe","vocab_size":512,"hidden_size":64,"num_hidden_layers":4,
 "num_attention_heads":16)";
constexpr const char* kBareGlm4 =
    R"({"model_type":"glm4_moe","vocab_size":512,"hidden_size":64,"num_hidden_layers":3,
 "num_attention_heads":8)";

TEST(ModelConfig, DeepseekV3AsReleased) {
  const ModelConfig config = parsed(kV3);
  EXPECT_EQ(config.family, Family::deepseek_v3);
  EXPECT_EQ(config.attention.kind, AttentionKind::mla);
  EXPECT_EQ(config.attention.rope.layout, RopeLayout::interleaved);
  EXPECT_NEAR(config.attention.softmax_scale, 0.135234, 1e-6);
  EXPECT_EQ(config.layer_ffn[2], FfnKind::dense);
  EXPECT_EQ(config.layer_ffn[3], FfnKind::moe);
  EXPECT_EQ(config.dense_intermediate_size, 18432u);
  EXPECT_EQ(config.shared_intermediate_size, 2048u);
  EXPECT_EQ(config.router.score, RouterScore::sigmoid);
  EXPECT_EQ(config.router.group_score, GroupScore::top2_sum);
  EXPECT_TRUE(config.router.has_bias && config.router.renormalize && config.router.scale_when_renormalized);
  EXPECT_EQ(config.router.scaling_factor, 2.5f);
  EXPECT_EQ(config.stored_dtype, DType::bf16);
  EXPECT_EQ(config.quantization.method, "fp8");
  EXPECT_EQ(config.quantization.block_cols, 128u);
  EXPECT_EQ(config.num_mtp_layers, 1u);
  EXPECT_EQ(config.bos_token_id, 0);
  EXPECT_EQ(config.eos_token_ids, std::vector<int32_t>{1});
}

// What an absent key means differs between families.
TEST(ModelConfig, AbsentKeysHaveTheFamilysDefault) {
  const ModelConfig v2 = parsed(kBareV2);
  EXPECT_FALSE(v2.router.renormalize);
  EXPECT_FALSE(v2.router.scale_when_renormalized);
  EXPECT_EQ(v2.router.scaling_factor, 1.0f);
  EXPECT_EQ(v2.router.num_experts, 64u);
  EXPECT_EQ(v2.router.num_groups, 1u);
  EXPECT_EQ(v2.router.score, RouterScore::softmax);
  EXPECT_EQ(v2.attention.q_lora_rank, 1536u);
  EXPECT_EQ(v2.shared_intermediate_size, 64u);
  EXPECT_EQ(v2.layer_ffn[0], FfnKind::moe);
  EXPECT_EQ(v2.rms_norm_eps, 1e-6f);

  const ModelConfig v3 = parsed(kBareV3);
  EXPECT_TRUE(v3.router.renormalize);
  EXPECT_EQ(v3.router.scaling_factor, 2.5f);
  EXPECT_EQ(v3.router.num_experts, 256u);
  EXPECT_EQ(v3.router.top_k, 8u);
  EXPECT_EQ(v3.router.num_groups, 8u);
  EXPECT_EQ(v3.router.groups_kept, 4u);
  EXPECT_EQ(v3.shared_intermediate_size, 32u);
  EXPECT_EQ(v3.layer_ffn[2], FfnKind::dense);
  EXPECT_EQ(v3.layer_ffn[3], FfnKind::moe);
  EXPECT_NEAR(v3.attention.softmax_scale, 1 / std::sqrt(192.0), 1e-7);

  const ModelConfig qwen = parsed(kBareQwen3);
  EXPECT_FALSE(qwen.router.renormalize);
  EXPECT_EQ(qwen.router.num_experts, 128u);
  EXPECT_EQ(qwen.router.top_k, 8u);
  EXPECT_EQ(qwen.attention.num_kv_heads, 4u);
  EXPECT_EQ(qwen.attention.head_dim, 8u);
  EXPECT_EQ(qwen.attention.rope.theta, 10000.0f);
  EXPECT_TRUE(qwen.attention.per_head_qk_norm);
  EXPECT_EQ(qwen.moe_intermediate_size, 768u);

  const ModelConfig mixtral = parsed(kBareMixtral);
  EXPECT_EQ(mixtral.attention.rope.theta, 1e6f);
  EXPECT_EQ(mixtral.rms_norm_eps, 1e-5f);
  EXPECT_EQ(mixtral.router.num_experts, 8u);
  EXPECT_EQ(mixtral.router.top_k, 2u);
  EXPECT_EQ(mixtral.router.score, RouterScore::top_k_logits);
  EXPECT_EQ(mixtral.attention.num_kv_heads, 8u);
  EXPECT_EQ(mixtral.moe_intermediate_size, 14336u);
  EXPECT_EQ(parsed(kBareMixtral, R"(,"num_key_value_heads":null)").attention.num_kv_heads, 8u);

  const ModelConfig granite = parsed(kBareGranite);
  EXPECT_EQ(granite.attention.num_kv_heads, 8u);
  EXPECT_EQ(granite.attention.softmax_scale, 1.0f);
  EXPECT_EQ(granite.logits_divisor, 1.0f);
  EXPECT_EQ(granite.rms_norm_eps, 1e-6f);
  EXPECT_EQ(granite.router.score, RouterScore::top_k_logits);
  EXPECT_FALSE(granite.tie_word_embeddings);
  EXPECT_EQ(granite.stored_dtype, DType::f32);
}

TEST(ModelConfig, Olmoe) {
  const ModelConfig bare = parsed(kBareOlmoe);
  EXPECT_TRUE(bare.attention.whole_qk_norm);
  EXPECT_FALSE(bare.attention.per_head_qk_norm);
  EXPECT_EQ(bare.attention.num_kv_heads, 8u);
  EXPECT_EQ(bare.attention.qkv_bound, 0.0f);
  EXPECT_FALSE(bare.attention.qkv_bias || bare.attention.output_bias);
  EXPECT_EQ(bare.attention.rope.theta, 10000.0f);
  EXPECT_EQ(bare.rms_norm_eps, 1e-5f);
  EXPECT_EQ(bare.moe_intermediate_size, 2048u);
  EXPECT_EQ(bare.router.num_experts, 64u);
  EXPECT_EQ(bare.router.top_k, 8u);
  EXPECT_FALSE(bare.router.renormalize);
  const ModelConfig full = parsed(kBareOlmoe, R"(,"clip_qkv":8.0,"attention_bias":true,"norm_topk_prob":true,
      "intermediate_size":1024,"num_key_value_heads":4,"head_dim":8)");
  EXPECT_EQ(full.attention.qkv_bound, 8.0f);
  EXPECT_TRUE(full.attention.qkv_bias && full.attention.output_bias && full.router.renormalize);
  EXPECT_EQ(full.moe_intermediate_size, 1024u);
  EXPECT_EQ(parsed(kBareOlmoe, R"(,"clip_qkv":null)").attention.qkv_bound, 0.0f);
  expect_refused(kBareOlmoe, R"(,"clip_qkv":0)", "clip_qkv", ErrorCode::invalid_argument);
  expect_refused(kBareOlmoe, R"(,"clip_qkv":-8)", "clip_qkv", ErrorCode::invalid_argument);
  expect_refused(kBareOlmoe, R"(,"clip_qkv":true)", "clip_qkv", ErrorCode::invalid_argument);
  expect_refused(kBareOlmoe, R"(,"head_dim":16)", "head_dim is 16; hidden_size / num_attention_heads");
  expect_refused(kBareOlmoe, R"(,"rope_scaling":{"type":"linear","factor":2})", "linear");
  expect_refused(kBareOlmoe, R"(,"hidden_act":"gelu")", "hidden_act");
}

TEST(ModelConfig, Qwen2Moe) {
  const ModelConfig bare = parsed(kBareQwen2);
  EXPECT_EQ(bare.attention.num_kv_heads, 16u);
  EXPECT_TRUE(bare.attention.qkv_bias);
  EXPECT_FALSE(bare.attention.output_bias || bare.attention.per_head_qk_norm || bare.attention.whole_qk_norm);
  EXPECT_EQ(bare.attention.rope.theta, 10000.0f);
  EXPECT_EQ(bare.rms_norm_eps, 1e-6f);
  EXPECT_EQ(bare.moe_intermediate_size, 1408u);
  EXPECT_EQ(bare.shared_intermediate_size, 5632u);
  EXPECT_TRUE(bare.gates_shared_expert);
  EXPECT_EQ(bare.router.num_experts, 60u);
  EXPECT_EQ(bare.router.top_k, 4u);
  EXPECT_FALSE(bare.router.renormalize);
  EXPECT_FALSE(parsed(kBareQwen2, R"(,"qkv_bias":false)").attention.qkv_bias);
  const ModelConfig mixed = parsed(kBareQwen2, R"(,"decoder_sparse_step":2,"mlp_only_layers":[3])");
  EXPECT_EQ(mixed.layer_ffn,
            (std::vector<FfnKind>{FfnKind::dense, FfnKind::moe, FfnKind::dense, FfnKind::dense}));
  EXPECT_EQ(mixed.dense_intermediate_size, 5632u);
  // Windows begin at max_window_layers.
  expect_refused(kBareQwen2, R"(,"use_sliding_window":true,"max_window_layers":2,"sliding_window":4096)",
                 "sliding_window");
  expect_refused(kBareQwen2, R"(,"use_sliding_window":true,"max_window_layers":2)", "use_sliding_window");
  EXPECT_EQ(parsed(kBareQwen2, R"(,"use_sliding_window":true,"sliding_window":4096)").num_layers, 4u);
  EXPECT_EQ(parsed(kBareQwen2, R"(,"use_sliding_window":false,"sliding_window":4096,"max_window_layers":2)")
                .num_layers,
            4u);
  expect_refused(kBareQwen2, R"(,"attention_bias":true)", "qkv_bias");
  expect_refused(kBareQwen2, R"(,"head_dim":16)", "head_dim is 16");
  expect_refused(kBareQwen2, R"(,"shared_expert_intermediate_size":0)", "shared_expert_intermediate_size",
                 ErrorCode::invalid_argument);
}

TEST(ModelConfig, Glm4Moe) {
  const ModelConfig bare = parsed(kBareGlm4);
  EXPECT_EQ(bare.attention.num_kv_heads, 8u);
  EXPECT_EQ(bare.attention.rope.dim, 4u);  // of a head of 8
  EXPECT_EQ(bare.attention.rope.layout, RopeLayout::half_split);
  EXPECT_FALSE(bare.attention.qkv_bias || bare.attention.output_bias || bare.attention.per_head_qk_norm);
  EXPECT_EQ(bare.rms_norm_eps, 1e-5f);
  EXPECT_EQ(bare.layer_ffn[0], FfnKind::dense);
  EXPECT_EQ(bare.layer_ffn[1], FfnKind::moe);
  EXPECT_EQ(bare.dense_intermediate_size, 10944u);
  EXPECT_EQ(bare.shared_intermediate_size, 1408u);
  EXPECT_EQ(bare.router.num_experts, 128u);
  EXPECT_EQ(bare.router.top_k, 8u);
  EXPECT_EQ(bare.router.num_groups, 1u);
  EXPECT_EQ(bare.router.scaling_factor, 1.0f);
  EXPECT_EQ(bare.router.score, RouterScore::sigmoid);
  EXPECT_TRUE(bare.router.has_bias && bare.router.renormalize);
  EXPECT_EQ(bare.num_mtp_layers, 0u);
  const ModelConfig full = parsed(
      kBareGlm4, R"(,"attention_bias":true,"use_qk_norm":true,"partial_rotary_factor":0.25,"head_dim":32,
      "num_nextn_predict_layers":1,"n_group":4,"topk_group":2,"routed_scaling_factor":2.5,"n_shared_experts":2,
      "first_k_dense_replace":3,"moe_intermediate_size":16)");
  EXPECT_TRUE(full.attention.qkv_bias && full.attention.per_head_qk_norm);
  EXPECT_FALSE(full.attention.output_bias);
  EXPECT_EQ(full.attention.rope.dim, 8u);
  EXPECT_EQ(full.draft.kind, DraftKind::mtp);
  EXPECT_EQ(full.router.groups_kept, 2u);
  EXPECT_EQ(full.router.group_score, GroupScore::top2_sum);
  EXPECT_EQ(full.shared_intermediate_size, 32u);
  EXPECT_EQ(full.layer_ffn, std::vector<FfnKind>(3, FfnKind::dense));
  EXPECT_EQ(parsed(kBareGlm4, R"(,"rope_parameters":{"rope_theta":5.0,"rope_type":"default",
      "partial_rotary_factor":1.0})")
                .attention.rope.dim,
            8u);
  for (const char* share : {"0", "1.5", "0.125"})  // a rotation needs pairs
    expect_refused(kBareGlm4, std::string(R"(,"partial_rotary_factor":)") + share, "partial_rotary_factor");
  expect_refused(kBareGlm4, R"(,"scoring_func":"softmax")", "glm4_moe has sigmoid");
  expect_refused(kBareGlm4, R"(,"topk_method":"greedy")", "glm4_moe has noaux_tc");
  expect_refused(kBareGlm4, R"(,"quantization_config":{"quant_method":"compressed-tensors"})",
                 "compressed-tensors");
  expect_refused(kBareGlm4, R"(,"n_group":7)", "n_group", ErrorCode::invalid_argument);
}

TEST(ModelConfig, Glm47Flash) {
  const std::string bare = R"({"model_type":"glm4_moe_lite","vocab_size":512,"hidden_size":64,
      "num_hidden_layers":3,"num_attention_heads":4,"moe_intermediate_size":32,"intermediate_size":96)";
  const ModelConfig config = parsed(bare);
  EXPECT_EQ(config.family, Family::deepseek_v3);
  EXPECT_EQ(config.attention.kind, AttentionKind::mla);
  EXPECT_EQ(config.attention.q_lora_rank, 768u);
  EXPECT_EQ(config.attention.qk_nope_head_dim, 192u);
  EXPECT_EQ(config.attention.v_head_dim, 256u);
  EXPECT_EQ(config.attention.rope.layout, RopeLayout::interleaved);
  EXPECT_EQ(config.rms_norm_eps, 1e-5f);
  EXPECT_EQ(config.router.num_experts, 64u);
  EXPECT_EQ(config.router.top_k, 4u);
  EXPECT_EQ(config.router.num_groups, 1u);
  EXPECT_EQ(config.router.scaling_factor, 1.8f);
  EXPECT_TRUE(config.router.has_bias && config.router.renormalize);
  EXPECT_EQ(config.layer_ffn, (std::vector<FfnKind>{FfnKind::dense, FfnKind::moe, FfnKind::moe}));
  EXPECT_EQ(parsed(bare, R"(,"mlp_layer_types":["dense","sparse","sparse"])").num_layers, 3u);
  expect_refused(bare, R"(,"mlp_layer_types":["dense","dense","sparse"])", "mlp_layer_types");
  expect_refused(bare, R"(,"mlp_layer_types":["dense","sparse"])", "mlp_layer_types");
  expect_refused(bare, R"(,"partial_rotary_factor":0.5)", "partial_rotary_factor");
}

TEST(ModelConfig, NullIsNotAbsent) {
  EXPECT_EQ(parsed(kBareV2, R"(,"q_lora_rank":null)").attention.q_lora_rank, 0u);
  EXPECT_EQ(parsed(kBareV2, R"(,"n_shared_experts":null)").shared_intermediate_size, 0u);
  const ModelConfig ungrouped = parsed(kBareV3, R"(,"n_group":null,"topk_group":null)");
  EXPECT_EQ(ungrouped.router.num_groups, 1u);
  EXPECT_EQ(ungrouped.router.groups_kept, 1u);
}

TEST(ModelConfig, RouterOfDeepseekV2) {
  const ModelConfig full = parsed(
      kBareV2, R"(,"n_routed_experts":160,"topk_method":"group_limited_greedy","n_group":8,"topk_group":3,
                 "routed_scaling_factor":16.0)");
  EXPECT_EQ(full.router.num_groups, 8u);
  EXPECT_EQ(full.router.groups_kept, 3u);
  EXPECT_EQ(full.router.group_score, GroupScore::max);
  EXPECT_EQ(full.router.scaling_factor, 16.0f);
  EXPECT_FALSE(full.router.has_bias);
  // greedy ignores groups
  EXPECT_EQ(parsed(kBareV2, R"(,"topk_method":"greedy","n_group":8,"topk_group":3)").router.num_groups, 1u);
  expect_refused(kBareV2, R"(,"topk_method":"noaux_tc")", "topk_method");
  expect_refused(kBareV2, R"(,"scoring_func":"sigmoid")", "scoring_func");
  expect_refused(kBareV3, R"(,"scoring_func":"softmax")", "scoring_func");
  expect_refused(kBareV3, R"(,"topk_method":"greedy")", "topk_method");
}

TEST(ModelConfig, LayerPattern) {
  const ModelConfig step2 = parsed(kBareQwen3, R"(,"decoder_sparse_step":2,"intermediate_size":96)");
  EXPECT_EQ(step2.layer_ffn,
            (std::vector<FfnKind>{FfnKind::dense, FfnKind::moe, FfnKind::dense, FfnKind::moe}));
  EXPECT_EQ(step2.dense_intermediate_size, 96u);
  const ModelConfig only = parsed(kBareQwen3, R"(,"mlp_only_layers":[1,3],"intermediate_size":96)");
  EXPECT_EQ(only.layer_ffn,
            (std::vector<FfnKind>{FfnKind::moe, FfnKind::dense, FfnKind::moe, FfnKind::dense}));
  const ModelConfig frequency = parsed(kBareV3, R"(,"first_k_dense_replace":1,"moe_layer_freq":2)");
  EXPECT_EQ(frequency.layer_ffn, (std::vector<FfnKind>{FfnKind::dense, FfnKind::dense, FfnKind::moe,
                                                       FfnKind::dense, FfnKind::moe}));
  expect_refused(kBareQwen3, R"(,"decoder_sparse_step":2)", "intermediate_size", ErrorCode::invalid_argument);
  expect_refused(kBareQwen3, R"(,"decoder_sparse_step":0)", "decoder_sparse_step",
                 ErrorCode::invalid_argument);
}

TEST(ModelConfig, GraniteMultipliers) {
  const ModelConfig config = parsed(
      kBareGranite, R"(,"embedding_multiplier":12,"attention_multiplier":0.015625,"residual_multiplier":0.22,
                       "logits_scaling":6.0,"tie_word_embeddings":true,"eos_token_id":[0,7],"num_local_experts":32,
                       "num_experts_per_tok":8)");
  EXPECT_EQ(config.embedding_multiplier, 12.0f);
  EXPECT_EQ(config.attention.softmax_scale, 0.015625f);
  EXPECT_EQ(config.residual_multiplier, 0.22f);
  EXPECT_EQ(config.logits_divisor, 6.0f);
  EXPECT_TRUE(config.tie_word_embeddings);
  EXPECT_EQ(config.eos_token_ids, (std::vector<int32_t>{0, 7}));
}

TEST(ModelConfig, NotImplementedModelTypes) {
  for (const char* type : {"deepseek_v4_1", "deepseek_v32", "glm_moe_dsa", "minimax_m2", "step3p7"}) {
    expect_refused(std::string(R"({"model_type":")") + type + "\"", "", type);
    expect_refused(std::string(R"({"model_type":")") + type + "\"", "",
                   "deepseek_v2, deepseek_v3, kimi_k2, qwen3_moe");
  }
  expect_refused(R"({"x":1)", "", "model_type is missing", ErrorCode::invalid_argument);
  expect_refused(R"({"model_type":7)", "", "model_type", ErrorCode::invalid_argument);
}

TEST(ModelConfig, RefusesByName) {
  expect_refused(kBareQwen3, R"(,"hidden_act":"gelu")", "hidden_act");
  expect_refused(kBareQwen3, R"(,"attention_bias":true)", "attention_bias");
  expect_refused(kBareMixtral, R"(,"sliding_window":4096)", "sliding_window");
  expect_refused(kBareQwen3, R"(,"use_sliding_window":true,"sliding_window":4096)", "sliding_window");
  EXPECT_EQ(parsed(kBareMixtral, R"(,"sliding_window":131072)").num_layers, 2u);
  EXPECT_EQ(parsed(kBareQwen3, R"(,"use_sliding_window":false,"sliding_window":4096)").num_layers, 4u);
  expect_refused(kBareV3, R"(,"quantization_config":{"quant_method":"awq"})", "awq");
  expect_refused(kBareV3, R"(,"quantization_config":{"quant_method":"fp8"})", "weight_block_size");
  expect_refused(
      kBareV3, R"(,"quantization_config":{"quant_method":"fp8","fmt":"e5m2","weight_block_size":[128,128]})",
      "e5m2");
  expect_refused(kBareV3, R"(,"torch_dtype":"float8")", "float8");
  expect_refused(kBareGranite, R"(,"position_embedding_type":"nope")", "position_embedding_type");
  constexpr ErrorCode kInvalid = ErrorCode::invalid_argument;
  expect_refused(kBareV3, R"(,"n_group":7)", "n_group", kInvalid);
  expect_refused(kBareV3, R"(,"topk_group":9)", "topk_group", kInvalid);
  expect_refused(kBareV3, R"(,"num_experts_per_tok":200)", "num_experts_per_tok", kInvalid);
  expect_refused(kBareV3, R"(,"n_routed_experts":8,"num_experts_per_tok":2)", "two best", kInvalid);
  expect_refused(kBareMixtral, R"(,"num_experts_per_tok":9)", "num_experts_per_tok", kInvalid);
  expect_refused(kBareQwen3, R"(,"num_key_value_heads":3)", "num_key_value_heads", kInvalid);
  expect_refused(kBareQwen3, R"(,"num_key_value_heads":0)", "num_key_value_heads", kInvalid);
  expect_refused(kBareQwen3, R"(,"norm_topk_prob":1)", "norm_topk_prob", kInvalid);
  expect_refused(kBareQwen3, R"(,"rms_norm_eps":-1)", "rms_norm_eps", kInvalid);
  expect_refused(kBareQwen3, R"(,"rms_norm_eps":1e999)", "", ErrorCode::data_loss);
  expect_refused(kBareQwen3, R"(,"eos_token_id":512)", "eos_token_id", ErrorCode::out_of_range);
  expect_refused(kBareQwen3, R"(,"eos_token_id":-1)", "eos_token_id", kInvalid);
  expect_refused(kBareQwen3, R"(,"hidden_size":64)", "hidden_size", ErrorCode::data_loss);  // twice
  expect_refused(R"({"model_type":"mixtral","hidden_size":0)", "", "hidden_size", kInvalid);
  expect_refused(R"({"model_type":"mixtral","hidden_size":"64")", "", "hidden_size", kInvalid);
  expect_refused(R"({"model_type":"mixtral","hidden_size":64)", "", "num_hidden_layers", kInvalid);
  expect_refused(R"({"model_type":"mixtral","hidden_size":18446744073709551615)", "", "hidden_size",
                 kInvalid);
  EXPECT_EQ(parse_model_config("[]", "config.json").error().code, ErrorCode::data_loss);
}

RopeConfig yarn(double theta, float factor, float mscale, float all_dim, float fast = 32, float slow = 1) {
  RopeConfig rope;
  rope.theta = static_cast<float>(theta);
  rope.dim = 64;
  rope.yarn = YarnConfig{.factor = factor,
                         .original_max_position = 4096,
                         .beta_fast = fast,
                         .beta_slow = slow,
                         .mscale = mscale,
                         .mscale_all_dim = all_dim,
                         .truncate = true,
                         .attention_factor = {}};
  return rope;
}

// cos and sin take one correction, the softmax scale another.
TEST(Rope, TwoYarnCorrections) {
  const auto check = [](float mscale, float all_dim, double cos_sin, double softmax) {
    const RopeConfig rope = yarn(10000, 40, mscale, all_dim);
    EXPECT_NEAR(rope.cos_sin_factor(), cos_sin, 5e-5);
    EXPECT_NEAR(mla_softmax_correction(rope), softmax, 5e-5);
  };
  check(0.707f, 0.707f, 1.0, 1.5896);
  check(1, 1, 1.0, 1.8739);
  check(1, 0, 1.3689, 1.0);
  EXPECT_NEAR(mla_softmax_correction(yarn(50000, 32, 1, 1)), 1.81326, 5e-6);
  EXPECT_EQ(yarn(10000, 1, 1, 0).cos_sin_factor(), 1.0);
  EXPECT_EQ(RopeConfig{}.cos_sin_factor(), 1.0);
  RopeConfig given = yarn(10000, 40, 1, 1);
  given.yarn->attention_factor = 1.25f;
  EXPECT_EQ(given.cos_sin_factor(), 1.25);
}

TEST(Rope, SoftmaxScaleOfV2Lite) {
  const ModelConfig lite = parsed(
      kBareV2,
      R"(,"q_lora_rank":null,"rope_scaling":{"type":"yarn","factor":40,"mscale":0.707,"mscale_all_dim":0.707,
                  "original_max_position_embeddings":4096,"beta_fast":32,"beta_slow":1})");
  EXPECT_NEAR(lite.attention.softmax_scale, 0.114721, 1e-6);
  EXPECT_EQ(lite.attention.rope.cos_sin_factor(), 1.0);
}

// The ramp between dimensions that keep their frequency and those that are stretched by the factor.
TEST(Rope, YarnBounds) {
  const auto share = [](const RopeConfig& rope, uint32_t pair) {  // 0: kept, 1: stretched
    const double plain = std::pow(static_cast<double>(rope.theta), -2.0 * pair / rope.dim);
    const double ratio = rope.inverse_frequencies()[pair] / plain;
    return (1 - ratio) / (1 - 1 / rope.yarn->factor);
  };
  const RopeConfig v3 = yarn(10000, 40, 1, 1);  // 10..23
  EXPECT_NEAR(share(v3, 10), 0, 1e-12);
  EXPECT_NEAR(share(v3, 11), 1.0 / 13, 1e-6);
  EXPECT_NEAR(share(v3, 22), 12.0 / 13, 1e-6);
  EXPECT_NEAR(share(v3, 23), 1, 1e-6);
  const RopeConfig kimi = yarn(50000, 32, 1, 1, 1, 1);  // 19..20
  EXPECT_NEAR(share(kimi, 19), 0, 1e-12);
  EXPECT_NEAR(share(kimi, 20), 1, 1e-6);
  RopeConfig exact = yarn(10000, 40, 1, 1);
  exact.yarn->truncate = false;  // 10.47..22.51
  EXPECT_NEAR(share(exact, 10), 0, 1e-12);
  EXPECT_NEAR(share(exact, 11), (11 - 10.47) / (22.51 - 10.47), 2e-3);
  EXPECT_NEAR(share(exact, 23), 1, 1e-6);
}

TEST(Rope, BothSpellings) {
  const std::string scaling = R"({"rope_type":"yarn","factor":4,"original_max_position_embeddings":32768})";
  const ModelConfig old_style = parsed(kBareQwen3, R"(,"rope_theta":1000000.0,"rope_scaling":)" + scaling);
  ASSERT_TRUE(old_style.attention.rope.yarn.has_value());
  EXPECT_EQ(old_style.attention.rope.theta, 1e6f);
  EXPECT_NEAR(old_style.attention.rope.cos_sin_factor(), 0.1 * std::log(4.0) + 1, 1e-12);
  const ModelConfig new_style =
      parsed(kBareQwen3, R"(,"rope_parameters":{"rope_theta":1000000.0,"rope_type":"yarn","factor":4,
                     "original_max_position_embeddings":32768})");
  EXPECT_EQ(new_style.attention.rope.inverse_frequencies(), old_style.attention.rope.inverse_frequencies());
  EXPECT_FALSE(parsed(kBareQwen3, R"(,"rope_parameters":{"rope_theta":5.0,"rope_type":"default"})")
                   .attention.rope.yarn);
  EXPECT_EQ(parsed(kBareQwen3, R"(,"rope_parameters":{"rope_theta":5.0})").attention.rope.theta, 5.0f);

  for (const char* type : {"linear", "dynamic", "llama3", "longrope", "su"}) {
    expect_refused(kBareQwen3, std::string(R"(,"rope_scaling":{"type":")") + type + R"(","factor":2})", type);
    expect_refused(kBareQwen3, std::string(R"(,"rope_scaling":{"rope_type":")") + type + R"("})", type);
  }
  constexpr ErrorCode kInvalid = ErrorCode::invalid_argument;
  expect_refused(kBareQwen3, R"(,"rope_scaling":{"type":"yarn","rope_type":"linear","factor":2})",
                 "rope_type", kInvalid);
  expect_refused(kBareQwen3, R"(,"rope_scaling":{"factor":2})", "rope_type is missing", kInvalid);
  expect_refused(kBareQwen3, R"(,"rope_scaling":{"type":"yarn"})", "rope_scaling.factor", kInvalid);
  expect_refused(kBareQwen3, R"(,"rope_scaling":{"type":"yarn","factor":0.5})", "rope_scaling.factor",
                 kInvalid);
  expect_refused(kBareQwen3, R"(,"rope_scaling":{"type":"yarn","factor":2,"mrope_section":[1]})",
                 "mrope_section");
  expect_refused(kBareQwen3,
                 R"(,"rope_scaling":{"type":"default"},"rope_parameters":{"rope_type":"default"})",
                 "keep one", kInvalid);
  expect_refused(kBareQwen3, R"(,"rope_theta":7.0,"rope_parameters":{"rope_theta":5.0})", "rope_theta",
                 kInvalid);
  expect_refused(kBareQwen3, R"(,"partial_rotary_factor":0.5)", "partial_rotary_factor");
  expect_refused(kBareQwen3, R"(,"head_dim":7)", "head_dim");
  expect_refused(kBareQwen3, R"(,"rope_scaling":"yarn")", "rope_scaling", kInvalid);
}

}  // namespace
}  // namespace tandem
