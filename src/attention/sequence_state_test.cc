#include "attention/sequence_state.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace tandem {
namespace {

StateGroupSpec small_spec() {
  StateGroupSpec spec;
  spec.tokens_per_block = 16;
  spec.bytes_per_block = 64;
  spec.layers = {0, 1};
  return spec;
}

TEST(BlockPool, ViewsOfLayersDoNotOverlap) {
  auto pool = BlockPool::create(small_spec(), 5);
  ASSERT_TRUE(pool.has_value());
  EXPECT_EQ(pool->caches().view(0, 1).base - pool->caches().view(0, 0).base, 5 * 64);
  EXPECT_EQ(pool->caches().view(0, 2).base, nullptr);
  EXPECT_EQ(pool->bytes(), 2u * 5 * 64);
}

TEST(BlockPool, RefusesWhatItCannotHold) {
  EXPECT_FALSE(BlockPool::create(small_spec(), 0).has_value());
}

TEST(SequenceState, ReservesWholeBlocksOrNothing) {
  auto pool = BlockPool::create(small_spec(), 3);
  ASSERT_TRUE(pool.has_value());
  SequenceState a(*pool, 1000);
  ASSERT_TRUE(a.reserve(17).has_value());
  EXPECT_EQ(pool->free_blocks(), 1u);
  SequenceState b(*pool, 1000);
  EXPECT_EQ(b.reserve(17).error().code, ErrorCode::resource_exhausted);
  EXPECT_EQ(pool->free_blocks(), 1u);  // the failed call kept nothing
  EXPECT_TRUE(b.reserve(16).has_value());
  EXPECT_EQ(a.reserve(1001).error().code, ErrorCode::out_of_range);
}

TEST(SequenceState, RollbackFreesExactlyWhatWasAdded) {
  auto pool = BlockPool::create(small_spec(), 10);
  ASSERT_TRUE(pool.has_value());
  SequenceState state(*pool, 160);
  ASSERT_TRUE(state.reserve(20).has_value());
  state.advance(20);
  const uint32_t mark = state.mark();
  const std::vector<int32_t> before(state.block_table().begin(), state.block_table().end());
  ASSERT_TRUE(state.reserve(64).has_value());
  state.advance(44);
  state.rollback(mark);
  EXPECT_EQ(std::vector<int32_t>(state.block_table().begin(), state.block_table().end()), before);
  EXPECT_EQ(state.length(), 20u);
  state.clear();
  EXPECT_EQ(pool->free_blocks(), 10u);
}

TEST(SequenceState, RandomLivesNeverShareOrLoseABlock) {
  auto pool = BlockPool::create(small_spec(), 40);
  ASSERT_TRUE(pool.has_value());
  std::mt19937 random(3);
  std::vector<std::unique_ptr<SequenceState>> states;
  for (int i = 0; i < 5000; ++i) {
    const auto choice = random() % 4;
    if (choice == 0 || states.empty()) {
      states.push_back(std::make_unique<SequenceState>(*pool, 640));
    } else {
      SequenceState& state = *states[random() % states.size()];
      if (choice == 1) {
        if (state.reserve(std::min<uint32_t>(640, state.length() + static_cast<uint32_t>(random() % 50)))
                .has_value()) {
          const auto room = static_cast<uint32_t>(state.block_table().size()) * 16 - state.length();
          state.advance(room == 0 ? 0 : static_cast<uint32_t>(random() % room));
        }
      } else if (choice == 2) {
        state.rollback(state.length() == 0 ? 0 : static_cast<uint32_t>(random() % state.length()));
      } else {
        states.erase(states.begin() + static_cast<long>(random() % states.size()));
      }
    }
    std::set<int32_t> used;
    size_t count = 0;
    for (const auto& state : states) {
      used.insert(state->block_table().begin(), state->block_table().end());
      count += state->block_table().size();
    }
    ASSERT_EQ(used.size(), count);
    ASSERT_EQ(pool->free_blocks() + count, 40u);
  }
}

}  // namespace
}  // namespace tandem
