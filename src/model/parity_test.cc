// Every fixture against the numbers of transformers, in float32 and in bf16.
#include "model/parity.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "checkpoint/safetensors.h"

namespace tandem {
namespace {

constexpr const char* kFixtures[] = {"deepseek_v2",
                                     "deepseek_v2_lite",
                                     "deepseek_v3",
                                     "deepseek_v3_mtp",
                                     "deepseek_v4",
                                     "deepseek_v4_pro",
                                     "glm4_moe",
                                     "glm4_moe_mtp",
                                     "glm4_moe_lite",
                                     "gpt_oss",
                                     "gpt_oss_bf16",
                                     "granitemoe",
                                     "kimi_k2",
                                     "mixtral",
                                     "moonlight",
                                     "olmoe",
                                     "qwen2_moe",
                                     "qwen3_moe",
                                     "qwen3_moe_sparse_step"};

class Parity : public testing::TestWithParam<const char*> {
 protected:
  std::string folder() const { return std::string("tests/fixtures/") + GetParam(); }
  bool is(const std::string& family) const { return folder().find(family) != std::string::npos; }

  // One report for each kernel table that this CPU can run.
  std::vector<ParityReport> run(const ParityOptions& options) {
    std::vector<ParityReport> reports;
    for (const KernelTable* table : runnable_kernel_tables()) {
      ThreadPool pool(1);
      KernelRunner kernels = KernelRunner::create(*table, pool).value();
      Result<ParityReport> report = run_parity(folder(), options, kernels);
      EXPECT_TRUE(report) << report.error().message;
      if (report) reports.push_back(*report);
    }
    EXPECT_FALSE(reports.empty());
    return reports;
  }
};

TEST_P(Parity, Float32EqualsTheReference) {
  for (const ParityReport& report : run({})) {
    EXPECT_TRUE(report.passed()) << report.text();
    EXPECT_LE(report.max_logit_difference(), 1e-3) << report.text();
    EXPECT_EQ(report.differing_router_rows(), 0u) << report.text();
    EXPECT_EQ(report.equal_token_share(), 1.0) << report.text();
    uint32_t rows = 0;
    for (const ParityPrompt& prompt : report.prompts) {
      rows += prompt.length;
      EXPECT_EQ(prompt.greedy_steps, is("deepseek_v4") ? 64u : 32u);
    }
    EXPECT_EQ(rows, is("deepseek_v4_pro") ? 338u : is("deepseek_v4") ? 310u : 111u);
    ASSERT_FALSE(report.layers.empty());
    for (const ParityLayer& layer : report.layers) {
      EXPECT_EQ(layer.rows, rows);  // all tokens of the prompts
      EXPECT_LE(layer.max_weight_difference, 1e-4) << report.text();
    }
  }
}

TEST_P(Parity, SharedExpertsOnAttentionAndDeterministicSumsStayWithinTheBound) {
  ParityOptions options;
  options.shared_on_attention = true;
  options.sum_mode = SumMode::deterministic;
  options.rows_per_step = 5;
  for (const ParityReport& report : run(options)) EXPECT_TRUE(report.passed()) << report.text();
}

// What rounding to bf16 may cost in these models, whose random weights make sharper attention and larger
// logits (up to 15) than trained ones: measured 0.6 with MLA, where the latent, the query and the result are
// each rounded, and 0.21 with GQA; 0.61 with Qwen2-MoE's, whose q and k have biases and no norm. Where a
// router's choice hangs on less than that, another expert answers and no small bound holds: those rows are
// left out, and the tokens of all rows are counted instead (measured: 93 % and more).
TEST_P(Parity, Bf16StaysWithinItsBound) {
  const bool mla = is("deepseek") || is("kimi") || is("moonlight") || is("glm4_moe_lite");
  ParityOptions options;
  options.compute_dtype = DType::bf16;
  options.max_logit_difference = mla ? 1.0 : is("qwen2_moe") ? 0.8 : 0.35;
  options.require_equal_routing = false;
  for (const ParityReport& report : run(options)) {
    EXPECT_TRUE(report.passed()) << report.text();
    EXPECT_GT(report.max_logit_difference(), 1e-3) << "bf16 was not computed in bf16";
    EXPECT_GE(report.equal_token_share(), 0.85) << report.text();
  }
}

INSTANTIATE_TEST_SUITE_P(Families, Parity, testing::ValuesIn(kFixtures),
                         [](const auto& parameter) { return std::string(parameter.param); });

TEST(ParityFixtures, EveryFolderIsTested) {
  size_t folders = 0;
  for (const auto& entry : std::filesystem::directory_iterator("tests/fixtures")) {
    folders += std::filesystem::exists(entry.path() / "parity.safetensors") ? 1 : 0;
  }
  EXPECT_EQ(folders, std::size(kFixtures));
}

// A difference must be seen: the same fixture with one expected logit, router id or token changed fails, and
// names it.
class ChangedFixture : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = testing::TempDir() + "parity_" + std::to_string(::getpid());
    std::filesystem::remove_all(folder_);
    std::filesystem::copy("tests/fixtures/mixtral", folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  // Overwrites four bytes of a tensor, `index` elements from its start.
  void change(const std::string& tensor, size_t index, const void* bytes) {
    const std::string path = folder_ + "/parity.safetensors";
    const SafetensorsFile file = SafetensorsFile::open(path).value();
    for (const TensorInfo& info : file.tensors()) {
      if (info.name != tensor) continue;
      std::fstream out(path, std::ios::in | std::ios::out | std::ios::binary);
      out.seekp(static_cast<std::streamoff>(info.begin + 4 * index));
      out.write(static_cast<const char*>(bytes), 4);
      return;
    }
    FAIL() << tensor;
  }
  Result<ParityReport> run() {
    ThreadPool pool(1);
    KernelRunner kernels = KernelRunner::create(*choose_kernel_table().value(), pool).value();
    return run_parity(folder_, {}, kernels);
  }
  std::string folder_;
};

TEST_F(ChangedFixture, AChangedLogitFails) {
  const float logit = 99.0f;
  change("prompt.1.logits", 3, &logit);
  const ParityReport report = run().value();
  EXPECT_FALSE(report.passed());
  EXPECT_GT(report.prompts[1].prefill_difference, 50);
  EXPECT_LT(report.prompts[0].prefill_difference, 1e-3);
  EXPECT_NE(report.text().find("FAILED"), std::string::npos);
  EXPECT_NE(report.json().find("\"passed\":false"), std::string::npos);
}

TEST_F(ChangedFixture, ANotANumberFails) {
  const uint32_t nan = 0x7fc00000;
  change("prompt.2.greedy_logits", 5, &nan);
  const ParityReport report = run().value();
  EXPECT_FALSE(report.passed());
  EXPECT_NE(report.json().find("\"max_logit_difference\":null"), std::string::npos);
}

TEST_F(ChangedFixture, AChangedExpertFails) {
  // The first row's experts are ascending: id 0 and id 0 is no choice that a router makes.
  const int32_t id = 0;
  change("prompt.3.layer.2.router_ids", 0, &id);
  change("prompt.3.layer.2.router_ids", 1, &id);
  const ParityReport report = run().value();
  EXPECT_FALSE(report.passed());
  EXPECT_EQ(report.differing_router_rows(), 1u);
  EXPECT_EQ(report.layers[2].differing_rows, 1u);
  EXPECT_EQ(report.prompts[3].same_routing_rows, 0u);
}

TEST_F(ChangedFixture, AChangedTokenFails) {
  const int32_t id = 50;
  change("prompt.0.greedy_ids", 31, &id);
  const ParityReport report = run().value();
  EXPECT_FALSE(report.passed());
  EXPECT_EQ(report.wrong_tokens(), 1u);
  EXPECT_EQ(report.prompts[0].equal_tokens, 31u);
}

TEST_F(ChangedFixture, ABadIdAndAMissingFileAreErrorsThatNameThem) {
  const int32_t id = 96;
  change("prompt.0.greedy_ids", 4, &id);
  const Result<ParityReport> bad = run();
  ASSERT_FALSE(bad);
  EXPECT_EQ(bad.error().code, ErrorCode::data_loss);
  EXPECT_NE(bad.error().message.find("prompt.0.greedy_ids has id 96: must be 0 to 95"), std::string::npos)
      << bad.error().message;
  std::filesystem::remove(folder_ + "/parity.safetensors");
  const Result<ParityReport> absent = run();
  ASSERT_FALSE(absent);
  EXPECT_EQ(absent.error().code, ErrorCode::not_found);
}

}  // namespace
}  // namespace tandem
