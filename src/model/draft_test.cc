// Multi-token prediction: its tensors, and its logits against plain formulas (tools/make_mtp_fixture.py).
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "checkpoint/safetensors.h"
#include "model/model_test_support.h"
#include "model/model_weights_testing.h"
#include "model/parity_fixture.h"

namespace tandem {
namespace {

constexpr const char* kFixture = "deepseek_v3_mtp";

std::vector<float> read_draft_logits(size_t prompt) {
  const SafetensorsFile file =
      SafetensorsFile::open(std::string("tests/fixtures/") + kFixture + "/parity.safetensors").value();
  const std::string name = "prompt." + std::to_string(prompt) + ".draft_logits";
  for (const TensorInfo& tensor : file.tensors()) {
    if (tensor.name != name) continue;
    std::vector<float> values(file.bytes(tensor).size() / sizeof(float));
    std::memcpy(values.data(), file.bytes(tensor).data(), file.bytes(tensor).size());
    return values;
  }
  return {};
}

// The drafter's logits at positions 0 to length - 2 of each prompt, in steps of `chunk` rows.
std::vector<std::vector<float>> draft_logits(const test::TestModel& model,
                                             const std::vector<FixturePrompt>& prompts, uint32_t chunk,
                                             OfflineOptions options = {}) {
  options.sequences = static_cast<uint32_t>(prompts.size());
  options.tokens_per_sequence = 128;
  options.capacity = 128;
  const auto runner = OfflineRunner::create(*model.model, test::kernels(), options).value();
  std::vector<std::vector<float>> all;
  for (uint32_t prompt = 0; prompt < prompts.size(); ++prompt) {
    const std::vector<int32_t>& ids = prompts[prompt].ids;
    std::vector<float>& logits = all.emplace_back();
    for (uint32_t begin = 0; begin < ids.size(); begin += chunk) {
      const auto end = std::min<uint32_t>(begin + chunk, static_cast<uint32_t>(ids.size()));
      std::vector<OfflineRow> rows, behind;
      for (uint32_t position = begin; position < end; ++position) {
        rows.push_back({prompt, position, ids[position]});
        if (position + 1 < ids.size()) behind.push_back({prompt, position, ids[position + 1]});
      }
      EXPECT_TRUE(runner->run(rows));
      if (behind.empty()) continue;
      const auto drafted = runner->run_drafts(behind);
      EXPECT_TRUE(drafted) << drafted.error().message;
      if (drafted) logits.insert(logits.end(), drafted->begin(), drafted->end());
    }
  }
  return all;
}

void hold_drafts(ModelConfig& config) {
  config.hold_drafts();
}

TEST(MtpDrafts, LogitsEqualThePlainFormulas) {
  const test::TestModel model = test::load_fixture(kFixture, DType::f32, hold_drafts);
  const auto prompts = read_parity_fixture(std::string("tests/fixtures/") + kFixture, model.config).value();
  const auto have = draft_logits(model, prompts, 128);
  for (size_t prompt = 0; prompt < prompts.size(); ++prompt) {
    const std::vector<float> want = read_draft_logits(prompt);
    ASSERT_EQ(have[prompt].size(), want.size());
    ASSERT_EQ(want.size(), (prompts[prompt].ids.size() - 1) * model.config.vocab_size);
    double largest = 0;
    for (size_t i = 0; i < want.size(); ++i)
      largest = std::max<double>(largest, std::abs(have[prompt][i] - want[i]));
    EXPECT_LE(largest, 1e-3) << "prompt " << prompt;
  }
}

TEST(MtpDrafts, ChunksAndPlacesOfTheGateChangeNoBit) {
  const test::TestModel model = test::load_fixture(kFixture, DType::bf16, hold_drafts);
  const auto prompts = read_parity_fixture(std::string("tests/fixtures/") + kFixture, model.config).value();
  const auto want = draft_logits(model, prompts, 128);
  EXPECT_EQ(draft_logits(model, prompts, 1), want);
  EXPECT_EQ(draft_logits(model, prompts, 9), want);
  OfflineOptions on_attention;
  on_attention.gate_on_attention = on_attention.shared_on_attention = true;
  EXPECT_EQ(draft_logits(model, prompts, 128, on_attention), want);
}

TEST(MtpDrafts, AreNotBuiltWhereTheyAreNotHeld) {
  const test::TestModel model = test::load_fixture(kFixture, DType::f32);
  StateCaches caches;
  const OwnedBuffer memory = allocate_state_group(model.model->state_groups()[0], 0, 1, caches).value();
  const auto program = model.model->build_drafts({4, 4}, FfnTraits{}, caches, nullptr);
  ASSERT_FALSE(program);
  EXPECT_NE(program.error().message.find("drafts are not held"), std::string::npos);
}

class MtpWeightsTest : public weights_testing::ModelWeightsTest {
 protected:
  void add(const std::string& name, std::vector<uint64_t> shape) {
    Tensor tensor;
    tensor.shape = std::move(shape);
    size_t elements = 1;
    for (const uint64_t dim : tensor.shape) elements *= dim;
    tensor.values.assign(elements, 0.5f);
    set_bytes(tensor);
    tensors_[name] = std::move(tensor);
  }
};

TEST_F(MtpWeightsTest, TheLayerIsLoadedAndTheCopiesOfTheModelsPartsAreNot) {
  make(weights_testing::kV3, /*blocks=*/false, /*drafts=*/true);
  add("model.layers.3.embed_tokens.weight", {70, 40});
  add("model.layers.3.shared_head.head.weight", {70, 40});
  write();
  auto weights = load();
  ASSERT_TRUE(weights) << weights.error().message;
  ASSERT_EQ(weights->layers.size(), 4u);
  EXPECT_EQ(weights->draft.embedding_norm, rows({"model.layers.3.enorm.weight"}));
  EXPECT_EQ(weights->draft.hidden_norm, rows({"model.layers.3.hnorm.weight"}));
  EXPECT_EQ(weights->draft.head_norm, rows({"model.layers.3.shared_head.norm.weight"}));
  expect_packed(weights->draft.join, PackArrangement::plain, rows({"model.layers.3.eh_proj.weight"}), 80);
  EXPECT_EQ(weights->layers[3].moe.experts.size(), 4u);
  // Without drafts nothing of the layer is.
  config_ = weights_testing::config_of(weights_testing::kV3);
  weights = load();
  ASSERT_TRUE(weights) << weights.error().message;
  EXPECT_EQ(weights->layers.size(), 3u);
  EXPECT_TRUE(weights->draft.join.empty());
}

TEST_F(MtpWeightsTest, AMissingTensorIsNamedWithTheSettingThatDoesWithout) {
  make(weights_testing::kV3, false, true);
  tensors_.erase("model.layers.3.hnorm.weight");
  expect_load_refused("tensor 'model.layers.3.hnorm.weight' [40] is missing", ErrorCode::not_found);
  expect_load_refused("speculative: off does without", ErrorCode::not_found);
}

TEST_F(MtpWeightsTest, ATensorThatTheDraftLayerDoesNotHaveIsNamed) {
  make(weights_testing::kV3, false, true);
  add("model.layers.3.extra.weight", {4});
  expect_load_refused("model.layers.3.extra.weight", ErrorCode::data_loss);
  tensors_.erase("model.layers.3.extra.weight");
  tensors_["model.layers.3.eh_proj.weight"].shape = {80, 40};
  expect_load_refused("model.layers.3.eh_proj.weight", ErrorCode::data_loss);
}

}  // namespace
}  // namespace tandem
