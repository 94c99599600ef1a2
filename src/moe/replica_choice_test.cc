#include "moe/replica_choice.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>

namespace tandem {
namespace {

using Owners = std::vector<std::vector<uint16_t>>;

std::vector<std::span<const uint16_t>> views(const Owners& owners) {
  return {owners.begin(), owners.end()};
}

// The smallest largest load that any choice gives.
uint32_t best(const Owners& owners, size_t num_ranks) {
  std::vector<uint32_t> loads(num_ranks);
  uint32_t found = UINT32_MAX;
  const std::function<void(size_t)> choose = [&](size_t item) {
    if (std::ranges::max(loads) >= found) return;
    if (item == owners.size()) {
      found = std::ranges::max(loads);
      return;
    }
    for (const uint16_t rank : owners[item]) {
      ++loads[rank];
      choose(item + 1);
      --loads[rank];
    }
  };
  choose(0);
  return found;
}

TEST(ReplicaBalance, TheLargestLoadIsAsSmallAsItCanBe) {
  std::mt19937 random(11);
  ReplicaBalance balance;
  for (int round = 0; round < 2000; ++round) {
    const size_t num_ranks = 1 + random() % 5;
    Owners owners(random() % 12);
    for (auto& mine : owners) {
      for (uint16_t rank = 0; rank < num_ranks; ++rank) {
        if (random() % 2 == 0) mine.push_back(rank);
      }
      if (mine.empty()) mine.push_back(static_cast<uint16_t>(random() % num_ranks));
    }
    balance.solve(views(owners), num_ranks);
    std::vector<uint32_t> loads(num_ranks);
    for (size_t item = 0; item < owners.size(); ++item) {
      ASSERT_LT(balance.chosen(item), owners[item].size());
      ++loads[owners[item][balance.chosen(item)]];
    }
    for (size_t rank = 0; rank < num_ranks; ++rank) ASSERT_EQ(balance.load(rank), loads[rank]);
    ASSERT_EQ(std::ranges::max(loads), owners.empty() ? 0 : best(owners, num_ranks)) << round;
  }
}

// Three items, each greedily on the first rank that has least: the last one would have no good place left.
TEST(ReplicaBalance, EarlierItemsMoveOnWhereThatHelps) {
  const Owners owners = {{0, 1}, {0, 2}, {1, 2}, {0, 1}, {0}, {0}};
  ReplicaBalance balance;
  balance.solve(views(owners), 3);
  EXPECT_EQ(balance.load(0), 2u);
  EXPECT_EQ(balance.load(1), 2u);
  EXPECT_EQ(balance.load(2), 2u);
}

}  // namespace
}  // namespace tandem
