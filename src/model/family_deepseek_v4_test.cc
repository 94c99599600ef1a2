#include "model/family_deepseek_v4.h"

#include <gtest/gtest.h>

#include <cmath>

#include "model/inspect.h"
#include "model/model_config_testing.h"

namespace tandem {
namespace {

using namespace config_testing;

// "0,0,4,128,…": `bootstrap`, then `pairs` times 4 and 128, then 4, then a 0 for each draft stage.
std::string ratios(const std::string& bootstrap, int pairs, int stages) {
  std::string list = bootstrap;
  for (int i = 0; i < pairs; ++i) list += ",4,128";
  list += ",4";
  for (int i = 0; i < stages; ++i) list += ",0";
  return R"(,"compress_ratios":[)" + list + "]";
}

constexpr const char* kShared =
    R"({"vocab_size":129280,"head_dim":512,"num_key_value_heads":1,"qk_rope_head_dim":64,"hc_mult":4,
 "hc_sinkhorn_iters":20,"hc_eps":1e-06,"index_head_dim":128,"index_n_heads":64,"n_shared_experts":1,"num_experts_per_tok":6,
 "num_hash_layers":3,"num_nextn_predict_layers":1,"o_lora_rank":1024,"compress_rope_theta":160000,"sliding_window":128,
 "scoring_func":"sqrtsoftplus","topk_method":"noaux_tc","torch_dtype":"bfloat16","max_position_embeddings":1048576,
 "rope_scaling":{"type":"yarn","factor":16,"original_max_position_embeddings":65536,"beta_fast":32,"beta_slow":1})";
constexpr const char* kFlash =
    R"(,"hidden_size":4096,"num_hidden_layers":43,"num_attention_heads":64,"q_lora_rank":1024,"o_groups":8,
 "n_routed_experts":256,"moe_intermediate_size":2048,"index_topk":512)";
constexpr const char* kPro =
    R"(,"hidden_size":7168,"num_hidden_layers":61,"num_attention_heads":128,"q_lora_rank":1536,"o_groups":16,
 "n_routed_experts":384,"moe_intermediate_size":3072,"index_topk":1024,"routed_scaling_factor":2.5)";
constexpr const char* kOfficial =
    R"(,"model_type":"deepseek_v4","rope_theta":10000,"rms_norm_eps":1e-06,"swiglu_limit":10.0,"norm_topk_prob":true,
 "bos_token_id":0,"eos_token_id":1,"hidden_act":"silu","attention_bias":false,"tie_word_embeddings":false)";
constexpr const char* kFp8 =
    R"(,"quantization_config":{"quant_method":"fp8","fmt":"e4m3","activation_scheme":"dynamic","scale_fmt":"ue8m0",
 "weight_block_size":[128,128]})";
constexpr const char* kFp4 = R"(,"expert_dtype":"fp4")";

std::string flash_with(const std::string& list) {
  return std::string(kShared) + kFlash + kOfficial + kFp8 + kFp4 + list;
}
std::string flash() {
  return flash_with(ratios("0,0", 20, 1));
}
std::string pro() {
  return std::string(kShared) + kPro + kOfficial + kFp8 + kFp4 + ratios("128,128", 29, 1);
}
// Nothing but what has no default, and what transformers saves instead of compress_ratios.
constexpr const char* kSmall =
    R"({"model_type":"deepseek_v4","vocab_size":128,"hidden_size":64,"num_hidden_layers":4,"num_attention_heads":4,
 "head_dim":32,"q_lora_rank":32,"o_groups":2,"o_lora_rank":16,"index_n_heads":2,"index_head_dim":16,"index_topk":2,
 "n_routed_experts":4,"num_experts_per_tok":2,"moe_intermediate_size":48,"qk_rope_head_dim":8)";
constexpr const char* kSmallTypes =
    R"(,"layer_types":["sliding_attention","compressed_sparse_attention","heavily_compressed_attention",
 "sliding_attention"],"compress_rates":{"compressed_sparse_attention":4,"heavily_compressed_attention":128},
 "mlp_layer_types":["hash_moe","moe","moe","moe"],"rope_parameters":{"main":{"rope_type":"default","rope_theta":500.0,
 "partial_rotary_factor":0.25},"compress":{"rope_type":"yarn","type":"yarn","rope_theta":9000.0,"factor":4,
 "original_max_position_embeddings":64,"attention_factor":1.0,"partial_rotary_factor":0.25}})";

TEST(DeepseekV4, FlashAsReleased) {
  const ModelConfig config = parsed(flash());
  EXPECT_EQ(config.family, Family::deepseek_v4);
  EXPECT_EQ(config.attention.kind, AttentionKind::compressed);
  EXPECT_EQ(config.attention.num_kv_heads, 1u);
  EXPECT_NEAR(config.attention.softmax_scale, 1 / std::sqrt(512.0), 1e-9);
  EXPECT_EQ(config.attention.rope.layout, RopeLayout::interleaved);
  EXPECT_EQ(config.attention.rope.theta, 10000.0f);
  EXPECT_FALSE(config.attention.rope.yarn.has_value());
  EXPECT_EQ(config.compressed.rope.theta, 160000.0f);
  ASSERT_TRUE(config.compressed.rope.yarn.has_value());
  EXPECT_EQ(config.compressed.rope.cos_sin_factor(), 1.0);  // YaRN without its magnitude
  ASSERT_EQ(config.compressed.ratios.size(), 43u);
  EXPECT_EQ(config.compressed.ratios[1], 0u);
  EXPECT_EQ(config.compressed.ratios[2], 4u);
  EXPECT_EQ(config.compressed.ratios[41], 128u);
  EXPECT_EQ(config.compressed.ratios[42], 4u);
  EXPECT_EQ(config.hyper_connections.num_streams, 4u);
  EXPECT_EQ(config.hyper_connections.sinkhorn_iterations, 20u);
  EXPECT_EQ(config.router.score, RouterScore::sqrt_softplus);
  EXPECT_TRUE(config.router.has_bias && config.router.renormalize && config.router.scale_when_renormalized);
  EXPECT_EQ(config.router.num_groups, 1u);
  EXPECT_EQ(config.num_hash_layers, 3u);
  EXPECT_EQ(config.swiglu_limit, 10.0f);
  EXPECT_EQ(config.draft.kind, DraftKind::mtp);
  EXPECT_EQ(config.draft.num_stages, 1u);
  EXPECT_EQ(config.quantization.experts, ExpertFormat::mxfp4);
  EXPECT_EQ(config.quantization.scale_dtype, DType::f8_e8m0);
  EXPECT_TRUE(config.is_moe(0));
  // The ramp of YaRN: dimensions up to 15 keep their frequency, those from 25 on are stretched 16 times.
  const auto frequencies = config.compressed.rope.inverse_frequencies();
  const auto plain = [](int i) { return std::pow(160000.0, -2.0 * i / 64); };
  EXPECT_NEAR(frequencies[15] / plain(15), 1, 1e-9);
  EXPECT_LT(frequencies[16] / plain(16), 0.95);
  EXPECT_GT(frequencies[24] / plain(24), 1.2 / 16);
  EXPECT_NEAR(frequencies[25] / plain(25), 1.0 / 16, 1e-9);
}

// The repack leaves out four keys and names itself otherwise; everything else is the same model in FP8.
TEST(DeepseekV4, Repacks) {
  const ModelConfig fp8 =
      parsed(std::string(kShared) + kFlash + R"(,"model_type":"deepseek_ref")" + kFp8 + ratios("0,0", 20, 1));
  EXPECT_EQ(fp8.family, Family::deepseek_v4);
  EXPECT_EQ(fp8.attention.rope.theta, 10000.0f);
  EXPECT_EQ(fp8.rms_norm_eps, 1e-6f);
  EXPECT_EQ(fp8.router.scaling_factor, 1.5f);
  EXPECT_EQ(fp8.swiglu_limit, 10.0f);
  EXPECT_EQ(fp8.quantization.experts, ExpertFormat::same);

  const std::string nvfp4 =
      R"(,"expert_dtype":"fp4","quantization_config":{"quant_method":"fp8","weight_block_size":[128,128],
      "scale_fmt":"ue8m0","moe_quant_algo":"NVFP4","quant_algo":"MIXED_PRECISION","ignore":["head"]})";
  const std::string head = std::string(kShared) + kFlash + kOfficial + ratios("0,0", 20, 1);
  EXPECT_EQ(parsed(head + nvfp4).quantization.experts, ExpertFormat::nvfp4);
  expect_refused(head, R"(,"quantization_config":{"quant_method":"fp8","weight_block_size":[128,128],
      "moe_quant_algo":"W4A8"})",
                 "moe_quant_algo is 'W4A8'");
  expect_refused(head, std::string(kFp8) + R"(,"expert_dtype":"int4")", "expert_dtype is 'int4'");
}

TEST(DeepseekV4, DsparkIsToldByItsKeys) {
  const std::string keys =
      R"(,"dspark_block_size":5,"dspark_noise_token_id":128799,"dspark_markov_rank":256)";
  const std::string targets = R"(,"dspark_target_layer_ids":[40,41,42])";
  const std::string head = flash_with(ratios("0,0", 20, 3));
  const ModelConfig config = parsed(head + keys + targets);
  EXPECT_EQ(config.draft.kind, DraftKind::dspark);
  EXPECT_EQ(config.draft.num_stages, 3u);  // num_nextn_predict_layers says 1
  EXPECT_EQ(config.draft.block_size, 5u);
  EXPECT_EQ(config.draft.noise_token_id, 128799);
  EXPECT_EQ(config.draft.markov_rank, 256u);
  EXPECT_EQ(config.draft.target_layers, (std::vector<uint32_t>{40, 41, 42}));
  EXPECT_EQ(config.compressed.ratios.size(), 43u);
  const uint64_t attention = 1024 * 4096 + 1024 + 32768 * 1024 + 512 * 4096 + 512 + 64 + 2 * 8192 * 4096;
  const uint64_t block =
      attention + 2 * 4096 + 2 * (24 * 16384 + 24 + 3) + 256 * 4096 + 256 + uint64_t{257} * 3 * 2048 * 4096;
  const InspectReport::Drafter drafter = inspect_model(config).drafter;
  EXPECT_EQ(drafter.parameters,
            3 * block + 4096 * 12288 + 2 * 4096 + 4 * 16384 + 4 + 1 + 2 * 129280 * 256 + 4096 + 256);
  EXPECT_EQ(drafter.block_size, 5u);
  constexpr ErrorCode kInvalid = ErrorCode::invalid_argument;
  expect_refused(head, keys, "dspark_target_layer_ids is missing", kInvalid);
  expect_refused(head, targets, "dspark_block_size", kInvalid);
  expect_refused(head, keys + R"(,"dspark_target_layer_ids":[40,43])", "names layer 43; the model has 43",
                 kInvalid);
  expect_refused(head, keys + targets + R"(,"n_mtp_layers":2)",
                 "has 46 entries; 43 layers and 2 draft stages need 45", kInvalid);
}

TEST(DeepseekV4, RatiosAreRefusedByName) {
  constexpr ErrorCode kInvalid = ErrorCode::invalid_argument;
  expect_refused(flash_with(ratios("0,0", 20, 0)), "",
                 "compress_ratios has 43 entries; 43 layers and 1 draft stages need 44", kInvalid);
  expect_refused(flash_with(ratios("0", 20, 1)), "", "has 43 entries", kInvalid);
  expect_refused(flash_with(ratios("0,8", 20, 1)), "",
                 "compress_ratios has 8 in entry 1; 0, 4 and 128 are implemented");
  expect_refused(flash_with(ratios("0,0", 20, 0) + R"(,"x":1)"), "", "compress_ratios", kInvalid);
  std::string last = ratios("0,0", 20, 1);
  last.replace(last.rfind("0]"), 2, "4]");
  expect_refused(flash_with(last), "", "has 4 in entry 43, a draft stage");
  expect_refused(flash_with(""), "", "compress_ratios is missing", kInvalid);
}

TEST(DeepseekV4, AsTransformersSavesIt) {
  const ModelConfig config = parsed(std::string(kSmall) + kSmallTypes);
  EXPECT_EQ(config.compressed.ratios, (std::vector<uint32_t>{0, 4, 128, 0}));
  EXPECT_EQ(config.num_hash_layers, 1u);
  EXPECT_EQ(config.attention.rope.theta, 500.0f);
  EXPECT_EQ(config.attention.rope.dim, 8u);
  EXPECT_EQ(config.compressed.rope.theta, 9000.0f);
  ASSERT_TRUE(config.compressed.rope.yarn.has_value());
  EXPECT_EQ(config.compressed.rope.yarn->factor, 4.0f);
  EXPECT_EQ(config.draft.kind, DraftKind::none);
  const auto with = [](const std::string& from, const std::string& to) {
    std::string text = std::string(kSmall) + kSmallTypes;
    return text.replace(text.find(from), from.size(), to);
  };
  constexpr ErrorCode kInvalid = ErrorCode::invalid_argument;
  expect_refused(with("heavily_compressed_attention\",", "full_attention\","), "", "full_attention");
  expect_refused(with("\"heavily_compressed_attention\":128", "\"heavily_compressed_attention\":64"), "",
                 "compress_rates.heavily_compressed_attention is 64; 128 is implemented");
  expect_refused(with("[\"hash_moe\",\"moe\"", "[\"moe\",\"hash_moe\""), "", "mlp_layer_types");
  expect_refused(with("\"compress\":{", "\"other\":{"), "", "rope_parameters.compress is missing", kInvalid);
  expect_refused(with(",\n \"sliding_attention\"]", "]"), "",
                 "layer_types has 3 entries; num_hidden_layers is 4", kInvalid);
}

TEST(DeepseekV4, OtherArchitecturesAreRefused) {
  expect_refused(R"({"model_type":"deepseek_v4_1")", "", "deepseek_v4_1");
  expect_refused(flash(), R"(,"scoring_func2":1,"num_key_value_heads":2)", "num_key_value_heads",
                 ErrorCode::data_loss);  // twice
  const std::string head = std::string(kSmall) + kSmallTypes;
  expect_refused(head, R"(,"scoring_func":"sigmoid")", "scoring_func");
  expect_refused(head, R"(,"topk_method":"greedy")", "topk_method");
  expect_refused(head, R"(,"num_key_value_heads":2)", "num_key_value_heads", ErrorCode::invalid_argument);
  expect_refused(head, R"(,"tie_word_embeddings":true)", "tie_word_embeddings");
}

InspectReport report_of(const std::string& text) {
  return inspect_model(parsed(text));
}

TEST(DeepseekV4, InspectFlash) {
  const InspectReport report = report_of(flash());
  EXPECT_NEAR(static_cast<double>(report.parameters) / 1e9, 284.33, 0.006);
  EXPECT_NEAR(static_cast<double>(report.active_parameters) / 1e9, 13.27, 0.006);
  // An expert: three matrices of half a byte a value, and a byte for 32 of a row.
  EXPECT_EQ(report.expert_bytes, 3u * (2048 * 4096 / 2 + 2048 * 4096 / 32));
  EXPECT_EQ(report.routed_bytes_per_token, 43u * 6 * report.expert_bytes);
  EXPECT_EQ(report.role(WeightRole::experts).bytes.at(DType::f4_e2m1), 43ull * 256 * 3 * 2048 * 4096 / 2);
  // The table of three layers as stored, and no parameters; biases of the other forty.
  const InspectReport::Role& router = report.role(WeightRole::router);
  EXPECT_EQ(router.bytes.at(DType::i64), 3ull * 129280 * 6 * 8);
  EXPECT_EQ(router.bytes.at(DType::f32), 40u * 256 * 4);
  EXPECT_EQ(router.parameters, 43ull * 256 * 4096 + 40 * 256);
  EXPECT_EQ(report.role(WeightRole::shared_experts).bytes.at(DType::f8_e8m0), 43u * 3 * 16 * 32);
  EXPECT_EQ(report.role(WeightRole::head).bytes.at(DType::bf16), 2ull * 129280 * 4096);
  ASSERT_EQ(report.kv_sizes.size(), 3u);
  const InspectReport::KvSize& size = report.kv_sizes[1];  // 21 layers of ratio 4, 20 of ratio 128
  EXPECT_EQ(size.tokens, 32768u);
  EXPECT_EQ(size.keys, 43ull * 128 * 512 * 2);
  EXPECT_EQ(size.sparse_entries, 21ull * 8192 * 512 * 2);
  EXPECT_EQ(size.indexer_keys, 21ull * 8192 * 128 * 2);
  EXPECT_EQ(size.heavy_entries, 20ull * 256 * 512 * 2);
  EXPECT_EQ(report.kv_bytes_per_token, 21u * 2 * (512 + 128) / 4 + 20 * 2 * 512 / 128);
  const std::string text = inspect_text(report);
  for (const char* word : {"284.33 B, 13.27 B active", "43 layers, 43 of them MoE with 256 experts, top-6",
                           "f4_e2m1", "12.8 MiB", "4 Ki tokens", "128 Ki tokens", "indexer keys"}) {
    EXPECT_NE(text.find(word), std::string::npos) << word << "\n" << text;
  }
  EXPECT_NE(inspect_json(report).find(R"("kv_bytes":[{"tokens":4096,"keys":5636096,"csa_entries":22020096,)"),
            std::string::npos)
      << inspect_json(report);
}

TEST(DeepseekV4, InspectProAndRepacks) {
  const InspectReport report = report_of(pro());
  EXPECT_NEAR(static_cast<double>(report.parameters) / 1e9, 1573, 0.6);
  EXPECT_NEAR(static_cast<double>(report.active_parameters) / 1e9, 48.85, 0.006);
  EXPECT_EQ(report.kv_sizes[0].keys, 61ull * 128 * 512 * 2);
  const InspectReport base =
      report_of(std::string(kShared) + kFlash + kOfficial + kFp8 + ratios("0,0", 20, 1));
  EXPECT_EQ(base.expert_bytes, 3u * (2048 * 4096 + 16 * 32));
  EXPECT_EQ(base.parameters, report_of(flash()).parameters);
}

TEST(DeepseekV4, OtherSpellings) {
  const auto is = [](const char* stored, const char* released) {
    EXPECT_EQ(canonical_deepseek_v4_name(stored), released);
    EXPECT_EQ(canonical_deepseek_v4_name(released), released);
    EXPECT_EQ(canonical_deepseek_v4_name(std::string("model.") + released), released);
  };
  is("model.embed_tokens.weight", "embed.weight");
  is("lm_head.weight", "head.weight");
  is("model.norm.weight", "norm.weight");
  is("model.hc_head.hc_scale", "hc_head_scale");
  is("model.layers.0.self_attn.wq_a.weight_scale_inv", "layers.0.attn.wq_a.scale");
  is("model.layers.7.mlp.gate.e_score_correction_bias", "layers.7.ffn.gate.bias");
  is("layers.7.mlp.experts.3.gate_proj.weight", "layers.7.ffn.experts.3.w1.weight");
  is("layers.7.mlp.shared_experts.up_proj.weight", "layers.7.ffn.shared_experts.w3.weight");
  is("model.layers.1.attn.norm.weight", "layers.1.attn.kv_norm.weight");
  is("model.layers.1.self_attn.compressor.indexer.gate_proj.weight",
     "layers.1.attn.indexer.compressor.wgate.weight");
  is("model.layers.1.self_attn.compressor.indexer.q_b_proj.weight", "layers.1.attn.indexer.wq_b.weight");
  is("model.layers.1.self_attn.compressor.indexer.scorer.weights_proj.weight",
     "layers.1.attn.indexer.weights_proj.weight");
  is("model.layers.1.self_attn.compressor.kv_norm.weight", "layers.1.attn.compressor.norm.weight");
  is("model.layers.1.attn_hc.fn", "layers.1.hc_attn_fn");
  is("model.layers.1.self_attn.sinks", "layers.1.attn.attn_sink");
  is("mtp.0.head.weight", "mtp.0.head.weight");
}

TEST(DeepseekV4, CopiesOfADrafter) {
  for (const char* copy :
       {"mtp.0.emb.tok_emb.weight", "mtp.0.embed.weight", "mtp.0.head.weight", "mtp.2.shared_head.weight"}) {
    EXPECT_TRUE(is_deepseek_v4_draft_copy(copy)) << copy;
  }
  for (const char* own : {"mtp.2.markov_head.markov_w1.weight", "mtp.2.confidence_head.proj.weight",
                          "mtp.0.hc_head_fn", "mtp.0.norm.weight", "head.weight", "embed.weight"}) {
    EXPECT_FALSE(is_deepseek_v4_draft_copy(own)) << own;
  }
}

}  // namespace
}  // namespace tandem
