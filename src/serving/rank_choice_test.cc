#include "serving/rank_choice.h"

#include <gtest/gtest.h>

#include <numeric>

namespace tandem {
namespace {

struct Case {
  const char* what;
  std::vector<RankLoad> ranks;
  std::optional<size_t> chosen;
};

TEST(RankChoice, Table) {
  const std::vector<Case> cases = {
      {"one rank", {{}}, 0},
      {"nobody is ready", {{.ready = false}, {.ready = false}}, std::nullopt},
      {"all queues are full", {{.queue_full = true}, {.queue_full = true}}, std::nullopt},
      {"the ready one", {{.ready = false}, {.kv_pool_tokens = 100, .kv_used_tokens = 99}}, 1},
      {"the one with room in its queue",
       {{.queue_full = true}, {.kv_pool_tokens = 100, .kv_used_tokens = 99}},
       1},
      {"more free KV",
       {{.kv_pool_tokens = 1000, .kv_used_tokens = 500}, {.kv_pool_tokens = 1000, .kv_used_tokens = 400}},
       1},
      {"what was just sent counts",
       {{.kv_pool_tokens = 1000, .kv_used_tokens = 100, .open_tokens = 600},
        {.kv_pool_tokens = 1000, .kv_used_tokens = 500}},
       1},
      {"a shared prefix is worth its tokens",
       {{.kv_pool_tokens = 1000, .kv_used_tokens = 0},
        {.shared_prefix_tokens = 128, .kv_pool_tokens = 1000, .kv_used_tokens = 127}},
       1},
      {"and not more",
       {{.kv_pool_tokens = 1000, .kv_used_tokens = 0},
        {.shared_prefix_tokens = 128, .kv_pool_tokens = 1000, .kv_used_tokens = 129}},
       0},
      {"a pool of twice the size takes twice as much",
       {{.kv_pool_tokens = 1000, .kv_used_tokens = 300}, {.kv_pool_tokens = 2000, .kv_used_tokens = 500}},
       1},
      {"and no more than that",
       {{.kv_pool_tokens = 1000, .kv_used_tokens = 300}, {.kv_pool_tokens = 2000, .kv_used_tokens = 700}},
       0},
      {"equal load: fewer requests", {{.open_requests = 2}, {.open_requests = 1}}, 1},
      {"equal in all: the one that waits longest",
       {{.last_chosen = 7}, {.last_chosen = 6}, {.last_chosen = 8}},
       1},
      {"a rank without a request so far goes first", {{.last_chosen = 1}, {}}, 1},
      {"the prefix of a rank that is lost does not count",
       {{.ready = false, .shared_prefix_tokens = 640}, {}},
       1},
  };
  for (const Case& each : cases) EXPECT_EQ(choose_rank(each.ranks), each.chosen) << each.what;
}

std::vector<int32_t> tokens(size_t count, int32_t first = 0) {
  std::vector<int32_t> list(count);
  std::iota(list.begin(), list.end(), first);
  return list;
}

TEST(PrefixHashes, WholeBlocksOnlyAndEachDependsOnAllBefore) {
  EXPECT_TRUE(prefix_hashes(tokens(63)).empty());
  const auto a = prefix_hashes(tokens(200));
  ASSERT_EQ(a.size(), 3u);
  auto other = tokens(200);
  other[70] = -1;
  const auto b = prefix_hashes(other);
  EXPECT_EQ(a[0], b[0]);
  EXPECT_NE(a[1], b[1]);
  EXPECT_NE(a[2], b[2]);
}

TEST(PrefixIndex, FindsTheLongestAndForgetsTheOldest) {
  PrefixIndex index(4);
  const auto a = prefix_hashes(tokens(256));
  index.add(a);
  EXPECT_EQ(index.longest(a), 256u);
  EXPECT_EQ(index.longest(prefix_hashes(tokens(130))), 128u);
  EXPECT_EQ(index.longest(prefix_hashes(tokens(256, 5))), 0u);
  const auto b = prefix_hashes(tokens(128, 1000));
  index.add(b);  // four blocks fit: the ends of `a` go
  EXPECT_EQ(index.blocks(), 4u);
  EXPECT_EQ(index.longest(b), 128u);
  EXPECT_EQ(index.longest(a), 128u);
  for (int i = 0; i < 1000; ++i) index.add(b);  // used again and again: nothing grows
  EXPECT_LE(index.blocks(), 4u);
  EXPECT_EQ(index.longest(b), 128u);
  index.clear();
  EXPECT_EQ(index.longest(b), 0u);
}

TEST(RankChoice, PrefixesOfAnotherSaltAreOthers) {
  std::vector<int32_t> prompt(128, 7);
  EXPECT_EQ(prefix_hashes(prompt, ""), prefix_hashes(prompt));
  EXPECT_EQ(prefix_hashes(prompt, "a"), prefix_hashes(prompt, "a"));
  PrefixIndex index;
  index.add(prefix_hashes(prompt, "a"));
  EXPECT_EQ(index.longest(prefix_hashes(prompt, "a")), 128u);
  EXPECT_EQ(index.longest(prefix_hashes(prompt, "b")), 0u);
  EXPECT_EQ(index.longest(prefix_hashes(prompt)), 0u);
  // A salt is no token.
  prompt.front() = 'a';
  EXPECT_NE(prefix_hashes(std::span(prompt).subspan(1), "a"), prefix_hashes(prompt));
}

}  // namespace
}  // namespace tandem
