#include "attention/sequence_state.h"

#include <gtest/gtest.h>

#include <memory>
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

std::unique_ptr<StatePools> pools_of(uint32_t num_blocks) {
  return std::make_unique<StatePools>(*StatePools::create({{small_spec()}}, {{num_blocks}}));
}

TEST(BlockPool, ABlockIsFreeWhenItsLastOwnerLetsGo) {
  StateCaches caches;
  BlockPool pool = BlockPool::create(small_spec(), 2, 0, caches).value();
  const int32_t block = pool.allocate().value();
  EXPECT_FALSE(pool.is_shared(block));
  pool.add_reference(block);
  EXPECT_TRUE(pool.is_shared(block));
  pool.release(block);
  EXPECT_EQ(pool.free_blocks(), 1u);
  pool.release(block);
  EXPECT_EQ(pool.free_blocks(), 2u);
}

TEST(SequenceState, ReservesWholeBlocksOrNothing) {
  const auto pools = pools_of(3);
  const BlockPool* pool = &pools->pool(0);
  SequenceState a(*pools, 1000);
  ASSERT_TRUE(a.reserve(17).has_value());
  EXPECT_EQ(pool->free_blocks(), 1u);
  SequenceState b(*pools, 1000);
  EXPECT_EQ(b.reserve(17).error().code, ErrorCode::resource_exhausted);
  EXPECT_EQ(pool->free_blocks(), 1u);  // the failed call kept nothing
  EXPECT_TRUE(b.reserve(16).has_value());
  EXPECT_EQ(a.reserve(1001).error().code, ErrorCode::out_of_range);
}

TEST(SequenceState, RollbackFreesExactlyWhatWasAdded) {
  const auto pools = pools_of(10);
  const BlockPool* pool = &pools->pool(0);
  SequenceState state(*pools, 160);
  ASSERT_TRUE(state.reserve(20).has_value());
  state.advance(20);
  const uint32_t mark = state.mark();
  const std::vector<int32_t> before(state.block_table().begin(), state.block_table().end());
  ASSERT_TRUE(state.reserve(64).has_value());
  state.advance(44);
  ASSERT_TRUE(state.rollback(mark));
  EXPECT_EQ(std::vector<int32_t>(state.block_table().begin(), state.block_table().end()), before);
  EXPECT_EQ(state.length(), 20u);
  state.clear();
  EXPECT_EQ(pool->free_blocks(), 10u);
}

TEST(SequenceState, RandomLivesNeverShareOrLoseABlock) {
  const auto pools = pools_of(40);
  const BlockPool* pool = &pools->pool(0);
  std::mt19937 random(3);
  std::vector<std::unique_ptr<SequenceState>> states;
  for (int i = 0; i < 5000; ++i) {
    const auto choice = random() % 4;
    if (choice == 0 || states.empty()) {
      states.push_back(std::make_unique<SequenceState>(*pools, 640));
    } else {
      SequenceState& state = *states[random() % states.size()];
      if (choice == 1) {
        if (state.reserve(std::min<uint32_t>(640, state.length() + static_cast<uint32_t>(random() % 50)))
                .has_value()) {
          const auto room = static_cast<uint32_t>(state.block_table().size()) * 16 - state.length();
          state.advance(room == 0 ? 0 : static_cast<uint32_t>(random() % room));
        }
      } else if (choice == 2) {
        ASSERT_TRUE(
            state.rollback(state.length() == 0 ? 0 : static_cast<uint32_t>(random() % state.length())));
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
