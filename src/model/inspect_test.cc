#include "model/inspect.h"

#include <gtest/gtest.h>

namespace tandem {
namespace {

// Settings of released models; the counts are what their makers publish.
constexpr const char* kDeepseek =
    R"(,"qk_nope_head_dim":128,"qk_rope_head_dim":64,"v_head_dim":128,"kv_lora_rank":512,
 "torch_dtype":"bfloat16")";
constexpr const char* kFp8 = R"(,"quantization_config":{"quant_method":"fp8","weight_block_size":[128,128]})";

InspectReport report_of(const std::string& text) {
  const auto config = parse_model_config("{" + text + "}", "config.json");
  if (!config) {
    ADD_FAILURE() << config.error().message;
    return {};
  }
  return inspect_model(*config);
}

void expect_billions(uint64_t parameters, double billions) {
  EXPECT_NEAR(static_cast<double>(parameters) / 1e9, billions, 0.006);
}

std::string v3() {
  return std::string(
             R"("model_type":"deepseek_v3","vocab_size":129280,"hidden_size":7168,"num_hidden_layers":61,
   "num_attention_heads":128,"q_lora_rank":1536,"intermediate_size":18432,"moe_intermediate_size":2048,
   "first_k_dense_replace":3,"num_nextn_predict_layers":1)") +
         kDeepseek;
}

TEST(Inspect, DeepseekV3) {
  const InspectReport report = report_of(v3() + kFp8);
  expect_billions(report.parameters, 671.03);
  expect_billions(report.active_parameters, 36.62);
  EXPECT_EQ(report.num_moe_layers, 58u);
  EXPECT_EQ(report.kv_bytes_per_token, 61u * 576 * 2);
  // An expert: three 2048 x 7168 matrices of one byte, and a scale of four bytes for 128 x 128.
  EXPECT_EQ(report.expert_bytes, 3u * (2048 * 7168 + 16 * 56 * 4));
  EXPECT_EQ(report.routed_bytes_per_token, 58u * 8 * report.expert_bytes);
  EXPECT_EQ(report.role(WeightRole::experts).bytes.at(DType::f8_e4m3), 58ull * 256 * 3 * 2048 * 7168);
  EXPECT_EQ(report.role(WeightRole::router).parameters, 58u * 256 * 7169);
  EXPECT_EQ(report.role(WeightRole::router).bytes.at(DType::f32), 58u * 256 * 4);
  EXPECT_EQ(report.role(WeightRole::router).bytes.at(DType::bf16), 58ull * 256 * 7168 * 2);
  EXPECT_EQ(report.role(WeightRole::shared_experts).parameters, 58ull * 3 * 2048 * 7168);
  // q_a, q_b, kv_a (576 rows: five rows of blocks, the last of them half used), kv_b, o
  EXPECT_EQ(report.role(WeightRole::attention).bytes.at(DType::f32),
            61u * 4 * (12 * 56 + 192 * 12 + 5 * 56 + 256 * 4 + 56 * 128));
  EXPECT_EQ(report.role(WeightRole::head).bytes.at(DType::bf16), 2ull * 129280 * 7168);
  EXPECT_FALSE(report.role(WeightRole::embedding).bytes.contains(DType::f8_e4m3));
  uint64_t bytes = 0;
  for (const InspectReport::Role& role : report.roles) bytes += role.total_bytes();
  EXPECT_EQ(bytes, report.stored_bytes);
}

TEST(Inspect, OtherReleasedModels) {
  const InspectReport kimi = report_of(
      std::string(R"("model_type":"kimi_k2","vocab_size":163840,"hidden_size":7168,"num_hidden_layers":61,
       "num_attention_heads":64,"q_lora_rank":1536,"intermediate_size":18432,"moe_intermediate_size":2048,"n_group":1,
       "topk_group":1,"n_routed_experts":384,"first_k_dense_replace":1)") +
      kDeepseek);
  expect_billions(kimi.parameters, 1026.41);
  expect_billions(kimi.active_parameters, 31.69);

  const InspectReport lite = report_of(
      std::string(R"("model_type":"deepseek_v2","vocab_size":102400,"hidden_size":2048,"num_hidden_layers":27,
       "num_attention_heads":16,"q_lora_rank":null,"intermediate_size":10944,"moe_intermediate_size":1408,
       "n_routed_experts":64,"num_experts_per_tok":6,"n_shared_experts":2,"first_k_dense_replace":1)") +
      kDeepseek);
  expect_billions(lite.parameters, 15.71);
  expect_billions(lite.active_parameters, 2.45);

  const std::string qwen30 =
      R"("model_type":"qwen3_moe","vocab_size":151936,"hidden_size":2048,"num_hidden_layers":48,
    "num_attention_heads":32,"num_key_value_heads":4,"head_dim":128,"moe_intermediate_size":768,"num_experts":128,
    "num_experts_per_tok":8,"torch_dtype":"bfloat16")";
  const InspectReport qwen = report_of(qwen30);
  expect_billions(qwen.parameters, 30.53);
  expect_billions(qwen.active_parameters, 3.04);
  EXPECT_EQ(qwen.kv_bytes_per_token, 48u * 2 * 4 * 128 * 2);
  const InspectReport codes =
      inspect_model(*parse_model_config("{" + qwen30 + "}", "config.json"), DType::f8_e4m3);
  EXPECT_EQ(codes.kv_bytes_per_token, 48u * 2 * 4 * (128 + 1));
  EXPECT_NE(inspect_text(codes).find("(f8_e4m3, all layers)"), std::string::npos) << inspect_text(codes);
  EXPECT_EQ(qwen.routed_bytes_per_token, 48ull * 8 * 3 * 768 * 2048 * 2);
  EXPECT_EQ(qwen.stored_bytes, 2 * qwen.parameters);

  const InspectReport mixtral = report_of(R"("model_type":"mixtral","vocab_size":32000,"hidden_size":4096,
    "num_hidden_layers":32,"num_attention_heads":32,"torch_dtype":"bfloat16")");
  expect_billions(mixtral.parameters, 46.70);
  expect_billions(mixtral.active_parameters, 12.75);

  const InspectReport granite = report_of(R"("model_type":"granitemoe","vocab_size":49155,"hidden_size":1024,
    "num_hidden_layers":24,"num_attention_heads":16,"num_key_value_heads":8,"intermediate_size":512,"num_local_experts":32,
    "num_experts_per_tok":8,"tie_word_embeddings":true,"torch_dtype":"bfloat16")");
  expect_billions(granite.parameters, 1.33);
  expect_billions(granite.active_parameters, 0.43);
  EXPECT_EQ(granite.role(WeightRole::head).parameters, 0u);
}

TEST(Inspect, Olmoe1b7b) {
  const InspectReport report = report_of(R"("model_type":"olmoe","architectures":["OlmoeForCausalLM"],
    "vocab_size":50304,"hidden_size":2048,"intermediate_size":1024,"num_hidden_layers":16,"num_attention_heads":16,
    "num_key_value_heads":16,"num_experts":64,"num_experts_per_tok":8,"norm_topk_prob":false,"clip_qkv":null,
    "attention_bias":false,"attention_dropout":0.0,"hidden_act":"silu","max_position_embeddings":4096,
    "rms_norm_eps":1e-05,"rope_scaling":null,"rope_theta":10000.0,"eos_token_id":50279,"pad_token_id":1,
    "output_router_logits":false,"router_aux_loss_coef":0.01,"tie_word_embeddings":false,"torch_dtype":"bfloat16",
    "transformers_version":"4.43.0","use_cache":true,"initializer_range":0.02)");
  expect_billions(report.parameters, 6.92);
  expect_billions(report.active_parameters, 1.18);
  EXPECT_EQ(report.kv_bytes_per_token, 16u * 2 * 2048 * 2);
}

TEST(Inspect, Qwen15MoeA27b) {
  const InspectReport report = report_of(R"("model_type":"qwen2_moe","architectures":["Qwen2MoeForCausalLM"],
    "vocab_size":151936,"hidden_size":2048,"intermediate_size":5632,"num_hidden_layers":24,"num_attention_heads":16,
    "num_key_value_heads":16,"num_experts":60,"num_experts_per_tok":4,"moe_intermediate_size":1408,
    "shared_expert_intermediate_size":5632,"decoder_sparse_step":1,"norm_topk_prob":false,"hidden_act":"silu",
    "attention_dropout":0.0,"max_position_embeddings":8192,"max_window_layers":21,"sliding_window":32768,
    "use_sliding_window":false,"rms_norm_eps":1e-06,"rope_theta":1000000.0,"bos_token_id":151643,
    "eos_token_id":151643,"output_router_logits":false,"router_aux_loss_coef":0.001,"tie_word_embeddings":false,
    "initializer_range":0.02,"use_cache":true,"torch_dtype":"bfloat16","transformers_version":"4.39.0.dev0")");
  expect_billions(report.parameters, 14.32);
  expect_billions(report.active_parameters, 2.38);
  EXPECT_EQ(report.role(WeightRole::shared_experts).parameters, 24ull * (3 * 5632 * 2048 + 2048));
  EXPECT_EQ(report.kv_bytes_per_token, 24u * 2 * 2048 * 2);
}

TEST(Inspect, Glm47Flash) {
  const InspectReport report =
      report_of(R"("model_type":"glm4_moe_lite","vocab_size":154880,"hidden_size":2048,
    "num_hidden_layers":47,"num_attention_heads":20,"num_key_value_heads":20,"q_lora_rank":768,"kv_lora_rank":512,
    "qk_nope_head_dim":192,"qk_rope_head_dim":64,"v_head_dim":256,"intermediate_size":10240,
    "moe_intermediate_size":1536,"n_routed_experts":64,"num_experts_per_tok":4,"n_shared_experts":1,"n_group":1,
    "topk_group":1,"topk_method":"noaux_tc","norm_topk_prob":true,"routed_scaling_factor":1.8,
    "first_k_dense_replace":1,"num_nextn_predict_layers":1,"rms_norm_eps":1e-05,"rope_theta":1000000,
    "rope_scaling":null,"partial_rotary_factor":1.0,"attention_bias":false,"torch_dtype":"bfloat16")");
  EXPECT_NEAR(static_cast<double>(report.parameters) / 1e9, 29.94, 0.02);
  EXPECT_NEAR(static_cast<double>(report.active_parameters) / 1e9, 3.58, 0.06);
  EXPECT_EQ(report.drafter.kind, DraftKind::mtp);
}

TEST(Inspect, Glm45Air) {
  const std::string air = R"("model_type":"glm4_moe","architectures":["Glm4MoeForCausalLM"],
    "vocab_size":151552,"hidden_size":4096,"intermediate_size":10944,"num_hidden_layers":46,"num_attention_heads":96,
    "num_key_value_heads":8,"head_dim":128,"attention_bias":true,"attention_dropout":0.0,"use_qk_norm":false,
    "partial_rotary_factor":0.5,"rope_theta":1000000,"rope_scaling":null,"max_position_embeddings":131072,
    "n_routed_experts":128,"num_experts_per_tok":8,"n_shared_experts":1,"moe_intermediate_size":1408,"n_group":1,
    "topk_group":1,"norm_topk_prob":true,"routed_scaling_factor":1.0,"first_k_dense_replace":1,"hidden_act":"silu",
    "num_nextn_predict_layers":1,"rms_norm_eps":1e-05,"pad_token_id":151329,
    "eos_token_id":[151329,151336,151338],"tie_word_embeddings":false,"torch_dtype":"bfloat16","use_cache":true)";
  const InspectReport report = report_of(air);
  EXPECT_NEAR(static_cast<double>(report.parameters) / 1e9, 106.9, 0.1);
  EXPECT_NEAR(static_cast<double>(report.active_parameters) / 1e9, 12.8, 0.1);
  EXPECT_EQ(report.num_moe_layers, 45u);
  EXPECT_EQ(report.kv_bytes_per_token, 46u * 2 * 8 * 128 * 2);
  EXPECT_EQ(report.drafter.kind, DraftKind::mtp);
  EXPECT_GT(report.drafter.parameters, 2u * 4096 * 4096 + 128ull * 3 * 1408 * 4096);
}

// Every rank's share of the experts; all shares together are the experts as often as there are replicas.
TEST(Inspect, FfnRanks) {
  const std::string qwen =
      R"("model_type":"qwen3_moe","vocab_size":151936,"hidden_size":2048,"num_hidden_layers":48,
    "num_attention_heads":32,"num_key_value_heads":4,"head_dim":128,"moe_intermediate_size":768,"num_experts":128,
    "num_experts_per_tok":8,"torch_dtype":"bfloat16")";
  InspectReport report = report_of(qwen);
  const ExpertMapShape shape{{}, report.num_experts, report.moe_intermediate_size};
  uint64_t bytes = 0;
  for (uint32_t rank = 0; rank < 5; ++rank) {  // groups of two and three; 768 rows are 6 granules
    add_ffn_rank(report, *held_share(shape, {PlacementKind::hybrid, 2}, rank, 5));
    bytes += report.ffn_ranks.back().stored_bytes;
  }
  EXPECT_EQ(bytes, report.role(WeightRole::experts).total_bytes());
  EXPECT_EQ(report.ffn_ranks[2].stored_bytes, 48ull * 64 * 3 * 256 * 2048 * 2);
  EXPECT_NE(inspect_text(report).find("FFN rank 2         9.0 GiB (64 experts a layer, rows 0..256 of each)"),
            std::string::npos)
      << inspect_text(report);
  EXPECT_NE(
      inspect_json(report).find(R"({"rank":4,"experts":64,"row_begin":512,"row_end":768,"stored_bytes":)"),
      std::string::npos)
      << inspect_json(report);
}

TEST(Inspect, ModulesThatAreNotConverted) {
  const std::string model =
      R"("model_type":"mixtral","vocab_size":100,"hidden_size":128,"num_hidden_layers":2,
    "num_attention_heads":8,"intermediate_size":128,"torch_dtype":"bfloat16","quantization_config":{"quant_method":"fp8",
    "weight_block_size":[128,128],"modules_to_not_convert":["model.layers.1.self_attn.q_proj"]})";
  const InspectReport report = report_of(model);
  EXPECT_EQ(report.role(WeightRole::attention).bytes.at(DType::bf16), 2u * 128 * 128);
  EXPECT_EQ(report.role(WeightRole::attention).bytes.at(DType::f8_e4m3), 7u * 128 * 128);
}

TEST(Inspect, TextAndJson) {
  const InspectReport report = report_of(v3() + kFp8);
  const std::string text = inspect_text(report);
  for (const char* word : {"671.03 B", "36.63 B active", "61 layers, 58 of them MoE", "f8_e4m3",
                           "shared_experts", "KV cache a token", "68.6 KiB", "routed a token"}) {
    EXPECT_NE(text.find(word), std::string::npos) << word << "\n" << text;
  }
  const std::string json = inspect_json(report);
  for (const char* word :
       {R"("parameters":671026419200)", R"("kv_bytes_per_token":70272)", R"("router":{"parameters":)"}) {
    EXPECT_NE(json.find(word), std::string::npos) << word << "\n" << json;
  }
}

}  // namespace
}  // namespace tandem
