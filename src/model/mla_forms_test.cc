// Both forms of latent attention: the expanded one of long parts of a prompt gives the absorbed one's logits
// up to rounding, whatever stands beside it in a step, and deterministic sums never take it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "model/model_test_support.h"
#include "model/step_mla.h"
#include "program/operations_mla.h"

namespace tandem::test {
namespace {

class MlaFormsTest : public testing::TestWithParam<const char*> {
 protected:
  static constexpr uint32_t kTokens = 330;  // two tiles of keys, of which the second is not full

  static OfflineOptions options(SumMode mode = SumMode::plain) {
    OfflineOptions out;
    out.sum_mode = mode;
    out.capacity = kTokens + 40;
    out.sequences = 3;
    out.tokens_per_sequence = kTokens;
    return out;
  }
  // Sequence 1 in one step beside the last token of sequence 0 and 30 tokens of sequence 2.
  static Steps among_others(const std::vector<std::vector<int32_t>>& sequences) {
    Steps steps = {rows_of(sequences, 0, 0, 39), rows_of(sequences, 0, 39, 40)};
    for (const auto& [sequence, count] : {std::pair{1u, kTokens}, std::pair{2u, 30u}}) {
      const std::vector<OfflineRow> rows = rows_of(sequences, sequence, 0, count);
      steps.back().insert(steps.back().end(), rows.begin(), rows.end());
    }
    return steps;
  }
};

struct Difference {
  double share = 0;    // root of the mean squared difference, of the root of the mean square
  size_t unequal = 0;  // rows with any other bit
};
Difference difference(const AllLogits& have, const AllLogits& want, uint32_t sequence) {
  Difference out;
  double sum = 0, size = 0;
  for (const auto& [row, logits] : want) {
    if (row.first != sequence) continue;
    const std::vector<float>& other = have.at(row);
    out.unequal += !std::ranges::equal(other, logits);
    for (size_t i = 0; i < logits.size(); ++i) {
      sum += std::pow(static_cast<double>(other[i]) - static_cast<double>(logits[i]), 2);
      size += std::pow(static_cast<double>(logits[i]), 2);
    }
  }
  out.share = std::sqrt(sum / size);
  return out;
}

TEST_P(MlaFormsTest, AgreeUpToRounding) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const TestModel model = load_fixture(GetParam(), dtype);
    const auto sequences = make_sequences(model.config.vocab_size, {40, kTokens, 30});
    const AllLogits absorbed = run_steps(*model.model, options(), chunked(sequences, 64));
    const float poison = std::nanf("");
    const AllLogits expanded = run_steps(*model.model, options(), among_others(sequences), &poison);
    const Difference found = difference(expanded, absorbed, 1);
    EXPECT_LE(found.share, dtype == DType::f32 ? 2e-5 : 0.1);
    EXPECT_GT(found.unequal, kTokens / 2) << "nothing was expanded";
    for (const uint32_t other : {0u, 2u})
      EXPECT_EQ(difference(expanded, absorbed, other).unequal, 0u) << other;
  }
}

TEST_P(MlaFormsTest, ALaterPartSeesTheEarlierOnes) {
  const TestModel model = load_fixture(GetParam(), DType::f32);
  const auto sequences = make_sequences(model.config.vocab_size, {1, kTokens, 1});
  Steps steps = {rows_of(sequences, 1, 0, 50), rows_of(sequences, 1, 50, 200),
                 rows_of(sequences, 1, 200, kTokens)};
  const Difference found = difference(run_steps(*model.model, options(), steps),
                                      run_steps(*model.model, options(), chunked(sequences, 64)), 1);
  EXPECT_LE(found.share, 2e-5);
  EXPECT_GT(found.unequal, kTokens / 2);
}

// With room for some of the heads at once the others follow, into the same place.
TEST_P(MlaFormsTest, HeadsThatFindNoRoomComeAfterTheOthers) {
  const TestModel roomy = load_fixture(GetParam(), DType::f32);
  const TestModel narrow =
      load_fixture(GetParam(), DType::f32, [](ModelConfig& config) { config.max_position_embeddings = 250; });
  const MlaSizes sizes = mla_sizes(narrow.config.attention);
  MlaWorkspace workspace;
  workspace.bytes = MlaWorkspace::bytes_for(sizes, DType::f32, 250);
  const uint32_t heads = workspace.heads(sizes, DType::f32, kTokens);
  ASSERT_GT(heads, 0u);
  ASSERT_LT(heads, sizes.num_heads);
  const auto sequences = make_sequences(roomy.config.vocab_size, {1, kTokens, 1});
  const Steps steps = {rows_of(sequences, 1, 0, kTokens)};
  const float poison = std::nanf("");
  EXPECT_EQ(difference(run_steps(*narrow.model, options(), steps, &poison),
                       run_steps(*roomy.model, options(), steps), 1)
                .unequal,
            0u);
}

TEST_P(MlaFormsTest, DeterministicSumsHaveOneForm) {
  const TestModel model = load_fixture(GetParam(), DType::bf16);
  const auto sequences = make_sequences(model.config.vocab_size, {40, kTokens, 30});
  const OfflineOptions exact = options(SumMode::deterministic);
  const AllLogits whole = run_steps(*model.model, exact, among_others(sequences));
  const AllLogits chunks = run_steps(*model.model, exact, chunked(sequences, 64));
  for (const uint32_t sequence : {0u, 1u, 2u})
    EXPECT_EQ(difference(whole, chunks, sequence).unequal, 0u) << sequence;
}

INSTANTIATE_TEST_SUITE_P(Fixtures, MlaFormsTest,
                         testing::Values("deepseek_v2", "deepseek_v3", "moonlight", "glm4_moe_lite"),
                         [](const auto& each) { return std::string(each.param); });

constexpr MlaSizes kLite = {
    .num_heads = 16, .latent_dim = 512, .nope_dim = 128, .rope_dim = 64, .value_dim = 128};

TEST(MlaForms, TheOneWithFewerProducts) {
  EXPECT_FALSE(expands_mla(kLite, 1, 4096, 16));
  EXPECT_FALSE(expands_mla(kLite, 127, 127, 16)) << "too few rows";
  EXPECT_TRUE(expands_mla(kLite, 128, 128, 16));
  EXPECT_TRUE(expands_mla(kLite, 512, 8192, 16));
  EXPECT_FALSE(expands_mla(kLite, 128, 8192, 16)) << "the context costs more than it saves";
  EXPECT_FALSE(expands_mla(kLite, 512, 8192, 0)) << "no room";
}

TEST(MlaForms, TheWorkspaceHoldsFewerHeadsOfMoreKeys) {
  auto builder = ProgramBuilder::create({.capacity = 512, .logits_capacity = 1}, {});
  ASSERT_TRUE(builder);
  const MlaWorkspace small = MlaWorkspace::plan(*builder, kLite, DType::bf16, 1000);
  EXPECT_EQ(small.heads(kLite, DType::bf16, 1000), 16u);
  EXPECT_EQ(small.heads(kLite, DType::bf16, 100), 16u);
  EXPECT_LT(small.heads(kLite, DType::bf16, 1100), 16u);
  const MlaWorkspace large = MlaWorkspace::plan(*builder, kLite, DType::bf16, 163'840);
  uint32_t before = 16;
  for (uint32_t keys = 1; keys < 163'840; keys += 1 + keys / 3) {
    const uint32_t heads = large.heads(kLite, DType::bf16, keys);
    EXPECT_LE(heads, before) << keys;
    // Latents, and the heads' values and keys: what an expansion writes.
    if (heads == 0) continue;
    EXPECT_LE((keys * size_t{512} + 63) / 64 * 64 * 2 + keys * size_t{heads} * (128 + 192) * 2, large.bytes);
    before = heads;
  }
  EXPECT_EQ(large.heads(kLite, DType::bf16, 163'840), 0u) << "no room";
  auto few = ProgramBuilder::create({.capacity = 64, .logits_capacity = 1}, {});
  ASSERT_TRUE(few);
  EXPECT_EQ(MlaWorkspace::plan(*few, kLite, DType::bf16, 1000).bytes, 0u);
}

}  // namespace
}  // namespace tandem::test
