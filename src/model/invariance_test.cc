// The same tokens give the same bits however they are cut into steps, whoever shares a step with them,
// whatever the spare rows hold, and however many threads compute. Token by token is the reference.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "model/model_test_support.h"

namespace tandem::test {
namespace {

struct Case {
  const char* family;
  DType compute_dtype;
  DType cache_dtype = DType::none;
};

// Whose keys and values may be codes.
constexpr const char* kCodedFamilies[] = {"qwen3_moe", "mixtral", "granitemoe", "deepseek_v2", "deepseek_v3"};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const char* family : kFamilies) {
    for (const DType dtype : {DType::bf16, DType::f32}) all.push_back({family, dtype});
  }
  for (const char* family : kCodedFamilies) all.push_back({family, DType::bf16, DType::f8_e4m3});
  return all;
}

class Invariance : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    model_ = load_fixture(GetParam().family, GetParam().compute_dtype);
    Result<Model> model =
        Model::create(model_.config, *model_.weights, {.cache_dtype = GetParam().cache_dtype});
    ASSERT_TRUE(model) << model.error().message;
    *model_.model = std::move(*model);
    sequences_ = make_sequences(model_.config.vocab_size, {1, 19, 37, 16});
    options_.capacity = 37;
    options_.sequences = static_cast<uint32_t>(sequences_.size());
    options_.tokens_per_sequence = 48;
  }
  AllLogits run(const Steps& steps, const float* poison = nullptr) {
    return run_steps(*model_.model, options_, steps, poison);
  }

  TestModel model_;
  std::vector<std::vector<int32_t>> sequences_;
  OfflineOptions options_;
};

TEST_P(Invariance, AnyChunkingAndAnyCompanyGiveTheBitsOfTokenByToken) {
  const AllLogits reference = run(chunked(sequences_, 1));
  for (const uint32_t chunk : {2u, 5u, 16u, 17u, 37u}) {
    expect_same_bits(run(chunked(sequences_, chunk)), reference, "chunks of " + std::to_string(chunk));
  }
  for (const uint32_t seed : {1u, 2u, 3u}) {
    expect_same_bits(run(mixed(sequences_, options_.capacity, seed)), reference,
                     "mixture " + std::to_string(seed));
  }
}

TEST_P(Invariance, SpareRowsMayHoldAnything) {
  options_.capacity = 8;
  const Steps steps = chunked(sequences_, 5);  // 5 live rows, 3 spare
  const AllLogits reference = run(chunked(sequences_, 1));
  for (const float poison : {std::numeric_limits<float>::quiet_NaN(), 1e30f, -1e30f}) {
    expect_same_bits(run(steps, &poison), reference, "poison " + std::to_string(poison));
  }
}

TEST_P(Invariance, ThreadsDoNotMatter) {
  TestKernels two(2);
  const Steps steps = mixed(sequences_, options_.capacity, 4);
  expect_same_bits(run_steps(*model_.model, options_, steps, nullptr, *two.runner), run(steps),
                   "two threads");
}

INSTANTIATE_TEST_SUITE_P(Families, Invariance, testing::ValuesIn(cases()), [](const auto& parameter) {
  const Case& one = parameter.param;
  const std::string name = std::string(one.family) + "_" + std::string(dtype_name(one.compute_dtype));
  return one.cache_dtype == DType::none ? name : name + "_cache_" + std::string(dtype_name(one.cache_dtype));
});

}  // namespace
}  // namespace tandem::test
