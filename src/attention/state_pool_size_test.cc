#include "attention/state_pool_size.h"

#include <gtest/gtest.h>

namespace tandem {
namespace {

StateGroupSpec spec(std::string name, uint32_t tokens_per_block, uint32_t retain, size_t bytes) {
  StateGroupSpec made;
  made.name = std::move(name);
  made.layers = {0, 1};
  made.tokens_per_block = tokens_per_block;
  made.bytes_per_block = bytes;
  made.retain_tokens = retain;
  return made;
}

const std::vector<StateGroupSpec> kOne = {spec("kv", 16, 0, 64)};
const std::vector<StateGroupSpec> kSeveral = {spec("window", 16, 128, 640), spec("pending", 8, 8, 100),
                                              spec("entries", 128, 0, 1000), spec("few", 128, 0, 10)};

TEST(StatePoolSize, OneGroupIsItsTokensInWholeBlocks) {
  const StatePoolLimits limits{4, 64, 1000};
  EXPECT_EQ(blocks_for_tokens(kOne, 1, limits), (std::vector<uint64_t>{1}));
  EXPECT_EQ(blocks_for_tokens(kOne, 33, limits), (std::vector<uint64_t>{3}));
  EXPECT_EQ(bytes_for_tokens(kOne, 33, limits), 3u * 64 * 2);
  EXPECT_EQ(tokens_within(kOne, 10 * 128 + 127, limits), 160u);
  EXPECT_EQ(tokens_within(kOne, 0, limits), 16u);                  // a block at least
  EXPECT_EQ(tokens_within(kOne, 1u << 30, limits), 4u * 63 * 16);  // 4 contexts, each in whole blocks
}

TEST(StatePoolSize, RetainedGroupsStopGrowingWithTheTokens) {
  const StatePoolLimits limits{4, 64, 100'000};
  // Of a window of 128 and 16 to go back: 9 blocks and the one in work, and one that a step begins.
  const std::vector<uint64_t> large = blocks_for_tokens(kSeveral, 100'000, limits);
  EXPECT_EQ(large, (std::vector<uint64_t>{4 * 11 + 4, 4 * 5 + 8, 782, 782}));
  EXPECT_EQ(blocks_for_tokens(kSeveral, 200'000, limits)[0], large[0]);
  // With few tokens no sequence gets as far as its retention.
  EXPECT_EQ(blocks_for_tokens(kSeveral, 128, limits), (std::vector<uint64_t>{8 + 4, 16 + 4, 1, 1}));
}

TEST(StatePoolSize, TheBudgetIsKeptAndUsed) {
  const StatePoolLimits limits{8, 256, 65'536};
  for (const uint64_t bytes : {200'000u, 500'000u, 1'000'000u, 3'000'000u}) {
    const uint64_t tokens = tokens_within(kSeveral, bytes, limits);
    EXPECT_LE(bytes_for_tokens(kSeveral, tokens, limits), bytes);
    EXPECT_GT(bytes_for_tokens(kSeveral, tokens + 128, limits), bytes);
  }
}

TEST(StatePools, KnowTheLongestSequenceAndWhatSaysHowFullTheyAre) {
  auto pools = StatePools::create(kSeveral, {{10, 4, 30, 20}});
  ASSERT_TRUE(pools) << pools.error().message;
  EXPECT_EQ(pools->max_sequence_tokens(), 20u * 128);
  EXPECT_EQ(pools->fullest_by_design().spec().name, "few");
  EXPECT_EQ(pools->free_tokens(), 4u * 8);
  // One block less than a window and its slack take: only what fits without giving anything back.
  pools = StatePools::create(kSeveral, {{9, 4, 30, 20}});
  EXPECT_EQ(pools->max_sequence_tokens(), 9u * 16);
  EXPECT_EQ(pools->caches().view(3, 1).base - pools->caches().view(3, 0).base, 10);
  EXPECT_EQ(pools->bytes(), 2u * (9 * 640 + 4 * 100 + 30 * 1000 + 20 * 10));
}

TEST(StatePools, RefuseByName) {
  const auto refused = [](StateGroupSpec group, uint32_t blocks, const std::string& part) {
    const auto pools = StatePools::create({{std::move(group)}}, {{blocks}});
    ASSERT_FALSE(pools) << part;
    EXPECT_NE(pools.error().message.find(part), std::string::npos) << pools.error().message;
  };
  refused(spec("odd", 24, 0, 8), 1, "state group odd: blocks of 24 tokens; a divisor of 128 is needed");
  refused(spec("none", 16, 0, 8), 0, "KV pool (none): no blocks; raise serving.kv_cache_tokens");
  StateGroupSpec every = spec("every", 16, 0, 8);
  every.snapshot_every = 100;
  refused(every, 1, "state group every: kept states every 100 tokens");
  EXPECT_FALSE(StatePools::create(kSeveral, {{1, 1}}));
}

}  // namespace
}  // namespace tandem
