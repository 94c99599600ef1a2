#include "model/family_deepseek_v4.h"
#include "model/model_weights_testing.h"

namespace tandem {
namespace {

using namespace weights_testing;

constexpr PackArrangement kPlain = PackArrangement::plain, kGateUp = PackArrangement::gate_up;

class DeepseekV4Load : public ModelWeightsTest {
 protected:
  void set_entry(const std::string& tensor, size_t index, int64_t value) {
    std::memcpy(tensors_.at(tensor).bytes.data() + index * sizeof value, &value, sizeof value);
  }

  void expect_ffn(const ModelWeights& weights) {
    const MoeLayerWeights& hashed = weights.layers[0].moe;
    const std::vector<float> ids = rows({"layers.0.ffn.gate.tid2eid"});
    ASSERT_EQ(hashed.hash_experts.size(), 70u * 2);
    for (size_t i = 0; i < ids.size(); ++i) ASSERT_EQ(hashed.hash_experts[i], ids[i]);
    EXPECT_TRUE(hashed.router_bias.empty());
    expect_packed(hashed.router, kPlain, rows({"layers.0.ffn.gate.weight"}), 40);
    const MoeLayerWeights& scored = weights.layers[1].moe;
    EXPECT_TRUE(scored.hash_experts.empty());
    EXPECT_EQ(scored.router_bias, rows({"layers.1.ffn.gate.bias"}));
    const std::string expert = "layers.1.ffn.experts.3.", shared = "layers.1.ffn.shared_experts.";
    expect_packed(scored.experts[3].gate_up, kGateUp, rows({expert + "w1.weight", expert + "w3.weight"}), 40);
    expect_packed(scored.experts[3].down, kPlain, rows({expert + "w2.weight"}), 20);
    expect_packed(scored.shared.gate_up, kGateUp, rows({shared + "w1.weight", shared + "w3.weight"}), 40);
    EXPECT_EQ(scored.shared.gate_up.rows, 80u);
    expect_packed(weights.head, kPlain, rows({"head.weight"}), 40);
    EXPECT_EQ(weights.final_norm, rows({"norm.weight"}));
  }
};

TEST_F(DeepseekV4Load, ReleasedNames) {
  make(kV4);
  // The drafter's block, and the copies that some files give it.
  for (const char* name : {"mtp.0.enorm.weight", "mtp.0.emb.tok_emb.weight", "mtp.0.head.weight"})
    tensors_[name] = tensors_["norm.weight"];
  write();
  const auto weights = load();
  ASSERT_TRUE(weights.has_value()) << weights.error().message;
  expect_ffn(*weights);
  HeldParts held;
  held.router = false;  // a rank that does not route holds neither gate nor table
  const auto without = load(DType::f32, held);
  ASSERT_TRUE(without.has_value()) << without.error().message;
  EXPECT_TRUE(without->layers[0].moe.hash_experts.empty());
  EXPECT_TRUE(without->layers[0].moe.router.empty());
  EXPECT_TRUE(without->layers[1].moe.router_bias.empty());
}

TEST_F(DeepseekV4Load, OtherNames) {
  make(kV4);
  auto released = tensors_;
  std::map<std::string, Tensor> renamed;
  for (auto& [name, tensor] : tensors_) {
    std::string other = "model." + name;
    const auto change = [&](const std::string& from, const std::string& to) {
      if (const size_t at = other.find(from); at != std::string::npos) other.replace(at, from.size(), to);
    };
    change(".attn.", ".self_attn.");
    change(".ffn.", ".mlp.");
    change("gate.bias", "gate.e_score_correction_bias");
    change("model.embed.", "model.embed_tokens.");
    change("model.head.", "lm_head.");
    change(".w1.", ".gate_proj.");
    change(".attn_norm.", ".input_layernorm.");
    change("hc_ffn_base", "ffn_hc.base");
    change("hc_head_fn", "hc_head.hc_fn");
    renamed[other] = tensor;
  }
  tensors_ = std::move(renamed);
  write();
  tensors_ = std::move(released);
  const auto weights = load();
  ASSERT_TRUE(weights.has_value()) << weights.error().message;
  expect_ffn(*weights);
}

TEST_F(DeepseekV4Load, TwoSpellingsOfOne) {
  make(kV4);
  tensors_["model.layers.1.mlp.gate.e_score_correction_bias"] = tensors_["layers.1.ffn.gate.bias"];
  expect_load_refused("are two spellings of 'layers.1.ffn.gate.bias'", ErrorCode::data_loss);
}

TEST_F(DeepseekV4Load, TableOutOfRange) {
  make(kV4);
  set_entry("layers.0.ffn.gate.tid2eid", 13 * 2 + 1, 4);
  expect_load_refused("'layers.0.ffn.gate.tid2eid' has 4 in row 13, entry 1; numbers from 0 to 3 would do",
                      ErrorCode::out_of_range);
  set_entry("layers.0.ffn.gate.tid2eid", 13 * 2 + 1, -1);
  expect_load_refused("has -1 in row 13", ErrorCode::out_of_range);
  set_entry("layers.0.ffn.gate.tid2eid", 13 * 2 + 1, (int64_t{1} << 32) + 1);  // 1 in 32 bits
  expect_load_refused("has 4294967297 in row 13", ErrorCode::out_of_range);
}

TEST_F(DeepseekV4Load, TableOfAnotherType) {
  make(kV4);
  tensors_["layers.0.ffn.gate.tid2eid"] = tensors_["layers.1.ffn.gate.weight"];
  tensors_["layers.0.ffn.gate.tid2eid"].shape = {70, 2};
  tensors_["layers.0.ffn.gate.tid2eid"].values.resize(140);
  set_bytes(tensors_["layers.0.ffn.gate.tid2eid"]);
  expect_load_refused("'layers.0.ffn.gate.tid2eid' is F32; a table of numbers is read as I64 or I32",
                      ErrorCode::unsupported);
}

TEST_F(DeepseekV4Load, MissingTensors) {
  for (const char* name :
       {"layers.1.attn.compressor.ape", "layers.2.attn.compressor.wkv.weight", "layers.0.ffn.gate.tid2eid",
        "layers.1.attn.indexer.compressor.norm.weight", "layers.1.hc_ffn_scale"}) {
    make(kV4);
    tensors_.erase(name);
    expect_load_refused("tensor '" + std::string(name) + "' [", ErrorCode::not_found);
  }
  make(kV4);
  tensors_["layers.2.attn.indexer.wq_b.weight"] = tensors_["norm.weight"];  // of a layer with another ratio
  expect_load_refused("'layers.2.attn.indexer.wq_b.weight' belongs to nothing", ErrorCode::data_loss);
  make(kV4);
  tensors_.erase("layers.2.attn.indexer.wq_b.weight");
  tensors_["mtp.1.norm.weight"] = tensors_["norm.weight"];
  expect_load_refused("'mtp.1.norm.weight' belongs to nothing: config.json makes 1 draft stages",
                      ErrorCode::data_loss);
}

// Two stages that read two layers.
std::string dspark_config() {
  std::string text = kV4;
  text.replace(text.find("[0,4,128,0]"), 11, "[0,4,128,0,0]");
  text.replace(text.rfind('}'), 1,
               ",\"dspark_block_size\":5,\"dspark_noise_token_id\":3,\"dspark_markov_rank\":8,"
               "\"dspark_target_layer_ids\":[2,1]}");
  return text;
}

TEST_F(DeepseekV4Load, DsparkIsLoadedAndTheCopiesOfTheModelsPartsAreNot) {
  make(dspark_config().c_str(), /*blocks=*/false, /*drafts=*/true);
  for (const char* name : {"mtp.0.emb.tok_emb.weight", "mtp.1.head.weight"})
    tensors_[name] = tensors_["norm.weight"];
  write();
  const auto weights = load();
  ASSERT_TRUE(weights.has_value()) << weights.error().message;
  ASSERT_EQ(weights->layers.size(), 5u);
  const DraftWeights& draft = weights->draft;
  expect_packed(draft.tap_projection, kPlain, rows({"mtp.0.main_proj.weight"}), 80);
  EXPECT_EQ(draft.tap_norm, rows({"mtp.0.main_norm.weight"}));
  EXPECT_EQ(draft.head_norm, rows({"mtp.1.norm.weight"}));
  EXPECT_EQ(draft.head_connection.mix, rows({"mtp.1.hc_head_fn"}));
  EXPECT_EQ(draft.markov_in_f32, rows({"mtp.1.markov_head.markov_w1.weight"}));
  expect_packed(draft.markov_out, kPlain, rows({"mtp.1.markov_head.markov_w2.weight"}), 8);
  EXPECT_EQ(draft.confidence, rows({"mtp.1.confidence_head.proj.weight"}));
  EXPECT_EQ(draft.confidence.size(), 48u);
  EXPECT_EQ(weights->layers[4].attention.kv_a_norm, rows({"mtp.1.attn.kv_norm.weight"}));
  expect_packed(weights->layers[3].moe.experts[2].down, kPlain, rows({"mtp.0.ffn.experts.2.w2.weight"}), 20);
  // A rank with experts alone holds those of the stages too, and nothing else of the drafter.
  HeldParts held;
  held.attention = false;
  const auto experts = load(DType::f32, held);
  ASSERT_TRUE(experts.has_value()) << experts.error().message;
  EXPECT_FALSE(experts->layers[4].moe.experts[0].down.empty());
  EXPECT_TRUE(experts->draft.tap_projection.empty());
  EXPECT_TRUE(experts->draft.markov_in_f32.empty());
  EXPECT_TRUE(experts->layers[4].attention.kv_a.empty());
  // Without drafts nothing of it is loaded.
  config_ = config_of(dspark_config().c_str());
  const auto without = load();
  ASSERT_TRUE(without.has_value()) << without.error().message;
  EXPECT_EQ(without->layers.size(), 3u);
  EXPECT_TRUE(without->draft.tap_projection.empty());
}

TEST_F(DeepseekV4Load, AMissingTensorOfAStageIsNamedWithTheSettingThatDoesWithout) {
  make(dspark_config().c_str(), false, true);
  tensors_.erase("mtp.1.attn.wq_a.weight");
  expect_load_refused(
      "tensor 'mtp.1.attn.wq_a.weight' [24, 40] is missing; config.json (deepseek_v4, its dspark_* keys)",
      ErrorCode::not_found);
  expect_load_refused("speculative: off does without", ErrorCode::not_found);
}

TEST_F(DeepseekV4Load, ADsparkHeadOfAnotherShapeIsNamed) {
  make(dspark_config().c_str(), false, true);
  tensors_["mtp.1.confidence_head.proj.weight"].shape = {48, 1};
  expect_load_refused(
      "'mtp.1.confidence_head.proj.weight' has the shape [48, 1]; config.json calls for [1, 48]",
      ErrorCode::data_loss);
}

TEST_F(DeepseekV4Load, DsparkKeysWithoutItsTensors) {
  make(dspark_config().c_str());
  expect_load_refused("tensor 'mtp.0.main_proj.weight' is missing; the dspark_* keys", ErrorCode::not_found);
  for (const char* name : {"mtp.0.main_proj.weight", "mtp.0.main_norm.weight", "mtp.1.norm.weight",
                           "mtp.1.hc_head_fn", "mtp.1.hc_head_base", "mtp.1.hc_head_scale",
                           "mtp.1.markov_head.markov_w1.weight", "mtp.1.markov_head.markov_w2.weight"}) {
    tensors_[name] = tensors_["norm.weight"];
  }
  expect_load_refused("tensor 'mtp.1.confidence_head.proj.weight' is missing", ErrorCode::not_found);
  tensors_["mtp.1.confidence_head.proj.weight"] = tensors_["norm.weight"];
  write();
  EXPECT_TRUE(load().has_value());
}

TEST_F(DeepseekV4Load, Nvfp4IsRefused) {
  std::string text = kV4;
  text.insert(
      text.size() - 1,
      R"(,"quantization_config":{"quant_method":"fp8","weight_block_size":[128,128],"moe_quant_algo":"NVFP4"})");
  make(text.c_str());
  expect_load_refused("its experts are NVFP4 (moe_quant_algo), which is not implemented",
                      ErrorCode::unsupported);
}

}  // namespace
}  // namespace tandem
