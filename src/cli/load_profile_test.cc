#include "cli/load_profile.h"

#include <gtest/gtest.h>

namespace tandem {
namespace {

TEST(LoadProfile, AsTheReportsThatItIsNamedAfterHaveIt) {
  const LoadProfile long_prompts = load_profile("seed-503", 1);
  EXPECT_EQ(long_prompts.concurrency, 128u);
  EXPECT_EQ(long_prompts.input_tokens, 8275u);
  EXPECT_EQ(long_prompts.output_tokens, 32u);
  EXPECT_EQ(long_prompts.max_num_batched_tokens, 3072u);
  EXPECT_EQ(long_prompts.max_num_seqs, 128u);
  EXPECT_EQ(long_prompts.capture_sizes.front(), 8u);
  EXPECT_EQ(long_prompts.capture_sizes.back(), 128u);
  const LoadProfile chat = load_profile("seed-545", 1);
  EXPECT_EQ(chat.concurrency, 4u);
  EXPECT_EQ(chat.input_tokens, 128u);
  EXPECT_EQ(chat.output_tokens, 128u);
}

TEST(LoadProfile, AScaleMultipliesEveryNumberAndKeepsEachUsable) {
  const LoadProfile tenth = load_profile("seed-503", 0.1);
  EXPECT_EQ(tenth.concurrency, 13u);
  EXPECT_EQ(tenth.input_tokens, 828u);
  EXPECT_EQ(tenth.output_tokens, 3u);
  EXPECT_EQ(tenth.max_num_batched_tokens, 307u);
  EXPECT_EQ(tenth.max_num_seqs, 13u);
  for (size_t i = 1; i < tenth.capture_sizes.size(); ++i)
    EXPECT_LT(tenth.capture_sizes[i - 1], tenth.capture_sizes[i]);
  const LoadProfile tiny = load_profile("seed-545", 0.001);
  EXPECT_EQ(tiny.concurrency, 1u);
  EXPECT_EQ(tiny.input_tokens, 1u);
  EXPECT_EQ(tiny.output_tokens, 2u);
}

TEST(LoadProfile, AContextThatIsTooShortIsRefusedWithTheScaleThatFits) {
  EXPECT_TRUE(check_context(load_profile("seed-545", 1), 256));
  const Status refused = check_context(load_profile("seed-503", 1), 2048);
  ASSERT_FALSE(refused);
  EXPECT_EQ(
      refused.error().message,
      "bench.scale: 1: profile seed-503 needs a context of 8307 tokens and the model has 2048; use --scale "
      "0.24 or less");
  EXPECT_TRUE(check_context(load_profile("seed-503", 0.24), 2048));
}

}  // namespace
}  // namespace tandem
