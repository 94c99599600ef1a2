// Random lives of sequences over several state groups against a model that knows only token by token: what a
// row can reach holds what was written for this very history, no block is lost, and none is freed twice.
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "attention/sequence_state.h"

namespace tandem {
namespace {

StateGroupSpec spec(std::string name, uint32_t tokens_per_block, uint32_t retain, uint32_t every = 0) {
  StateGroupSpec made;
  made.name = std::move(name);
  made.layers = {0};
  made.tokens_per_block = tokens_per_block;
  made.bytes_per_block = 8;
  made.retain_tokens = retain;
  made.snapshot_every = every;
  return made;
}

// Scaled-down shapes of a model with a window, pending inputs of two compressors, and their entries.
const std::vector<StateGroupSpec> kGroups = {spec("window", 16, 128), spec("csa_pending", 8, 8),
                                             spec("hca_pending", 32, 128), spec("entries", 128, 0),
                                             spec("few", 64, 0, 128)};

// A state with the tokens that it holds. The stamp of a position is a hash of all tokens up to it.
struct Life {
  Life(StatePools& pools, uint32_t max_tokens) : state(pools, max_tokens) {}
  void push(uint32_t token) {
    stamps.push_back((stamps.empty() ? 0x9e3779b97f4a7c15u : stamps.back()) * 0x100000001b3u + token + 1);
  }
  SequenceState state;
  std::vector<uint64_t> stamps;  // [state.length()]
};

struct Kept {
  StateSnapshot snapshot;
  std::vector<uint64_t> stamps;
};

class World {
 public:
  explicit World(std::vector<uint32_t> num_blocks) : pools(*StatePools::create(kGroups, num_blocks)) {
    for (uint32_t group = 0; group < kGroups.size(); ++group)
      memory_.emplace_back(size_t{num_blocks[group]} * kGroups[group].tokens_per_block);
  }

  // One step: each row is written, then reads all that it can reach, as a program does layer by layer.
  void step(Life& life, uint32_t rows, std::mt19937& random) {
    const uint32_t begin = life.state.length();
    ASSERT_EQ(life.stamps.size(), begin);
    for (uint32_t i = 0; i < rows; ++i) life.push(random() % 7);
    for (uint32_t position = begin; position < begin + rows; ++position) {
      for (uint32_t group = 0; group < kGroups.size(); ++group)
        *at(life, group, position) = life.stamps[position];
    }
    for (uint32_t position = begin; position < begin + rows; ++position) check_row(life, position);
    life.state.advance(rows);
    if (random() % 8 == 0) {  // a drafter goes over the same rows
      for (uint32_t position = begin; position < begin + rows; ++position) check_row(life, position);
    }
    life.state.trim();
  }
  // What the next row could read.
  void check(const Life& life) {
    ASSERT_EQ(life.state.length(), life.stamps.size());
    check_reach(life, life.state.length(), life.state.length());
  }

  // Every block has as many owners as name it, and the others are free.
  void check_blocks(const std::vector<std::unique_ptr<Life>>& lives, const std::vector<Kept>& kept) {
    size_t referred = 0;
    for (uint32_t group = 0; group < kGroups.size(); ++group) {
      std::map<int32_t, uint32_t> owners;
      for (const auto& life : lives) {
        for (const int32_t block : life->state.block_table(group)) {
          if (block >= 0) ++owners[block];
        }
      }
      const BlockPool& pool = pools.pool(group);
      for (const auto& [block, count] : owners) ASSERT_TRUE(count == 1 || pool.is_shared(block));
      // A snapshot alone may hold blocks too.
      ASSERT_LE(owners.size() + pool.free_blocks(), pool.num_blocks());
      if (kept.empty()) {
        ASSERT_EQ(owners.size() + pool.free_blocks(), pool.num_blocks());
      }
      referred += owners.size();
    }
    if (lives.empty()) {
      ASSERT_EQ(referred, 0u);
    }
  }

  StatePools pools;

 private:
  uint64_t* at(const Life& life, uint32_t group, uint32_t position) {
    const uint32_t tokens = kGroups[group].tokens_per_block;
    const int32_t block = life.state.block_table(group)[position / tokens];
    EXPECT_GE(block, 0) << kGroups[group].name << " position " << position;
    return &memory_[group].at(static_cast<size_t>(block) * tokens + position % tokens);
  }
  void check_row(const Life& life, uint32_t position) { check_reach(life, position, position + 1); }
  // What a row at `position` reaches of the positions before `end`.
  void check_reach(const Life& life, uint32_t position, uint32_t end) {
    for (uint32_t group = 0; group < kGroups.size(); ++group) {
      const uint32_t retain = kGroups[group].retain_tokens;
      const uint32_t first = retain == 0 || position < retain ? 0 : position - retain;
      for (uint32_t reached = first; reached < end; ++reached) {
        ASSERT_EQ(*at(life, group, reached), life.stamps[reached])
            << kGroups[group].name << " position " << reached << " of a row at " << position;
      }
    }
  }

  std::vector<std::vector<uint64_t>> memory_;  // [groups][blocks * tokens_per_block]
};

TEST(SequenceStateGroups, ARetainedGroupHoldsItsRetentionAndTheSlack) {
  World world({64, 64, 64, 64, 64});
  std::mt19937 random(1);
  Life life(world.pools, 4096);
  for (int i = 0; i < 1000; ++i) {
    ASSERT_TRUE(life.state.reserve(life.state.length() + 1));
    world.step(life, 1, random);
    for (uint32_t group = 0; group < 3; ++group) {
      ASSERT_LE(64 - world.pools.pool(group).free_blocks(), retained_blocks(kGroups[group], kRollbackSlack));
    }
  }
  EXPECT_EQ(world.pools.pool(3).free_blocks(), 64u - 8);
  EXPECT_EQ(life.state.block_table(0)[0], -1);
  EXPECT_EQ(life.state.block_table(3)[0] >= 0, true);
  life.state.clear();
  for (uint32_t group = 0; group < kGroups.size(); ++group)
    EXPECT_EQ(world.pools.pool(group).free_blocks(), 64u);
}

TEST(SequenceStateGroups, ReserveTakesBlocksOfAllGroupsOrOfNone) {
  World world({64, 64, 64, 2, 64});
  SequenceState state(world.pools, 4096);
  const Status refused = state.reserve(257);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::resource_exhausted);
  EXPECT_EQ(refused.error().message, "KV pool (entries): 3 blocks wanted, 2 free");
  EXPECT_FALSE(state.holds_blocks());
  EXPECT_EQ(world.pools.pool(0).free_blocks(), 64u);
  // Ahead of the next rows only what is kept for good.
  ASSERT_TRUE(state.reserve(16, 256));
  EXPECT_EQ(world.pools.pool(0).free_blocks(), 63u);
  EXPECT_EQ(world.pools.pool(3).free_blocks(), 0u);
}

TEST(SequenceStateGroups, RollbackSaysHowFarItReaches) {
  World world({64, 64, 64, 64, 64});
  std::mt19937 random(2);
  Life life(world.pools, 4096);
  ASSERT_TRUE(life.state.reserve(500));
  world.step(life, 500, random);
  EXPECT_TRUE(life.state.rollback(500 - kRollbackSlack));
  const Status refused = life.state.rollback(300);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::out_of_range);
  EXPECT_EQ(
      refused.error().message,
      "rollback from 484 to 300 tokens: its blocks are given back (window); compute the sequence again");
  EXPECT_EQ(life.state.length(), 484u);
  EXPECT_FALSE(life.state.rollback(485));
  EXPECT_TRUE(life.state.rollback(0));
  EXPECT_FALSE(life.state.holds_blocks());
}

TEST(SequenceStateGroups, SnapshotsShareBlocksAndSayWhereTheyCanBe) {
  World world({64, 80, 64, 64, 64});
  std::mt19937 random(3);
  auto life = std::make_unique<Life>(world.pools, 4096);
  ASSERT_TRUE(life->state.reserve(520));
  world.step(*life, 520, random);
  const auto refusal = [&](uint32_t position) { return life->state.snapshot(position).error().message; };
  EXPECT_EQ(refusal(448), "snapshot at 448 tokens: multiples of 128 (entries)");
  EXPECT_EQ(refusal(640), "snapshot at 640 tokens of a sequence of 520");
  EXPECT_EQ(refusal(384), "snapshot at 384 tokens: its blocks are given back (window)");
  auto snapshot = life->state.snapshot(512);
  ASSERT_TRUE(snapshot) << snapshot.error().message;
  EXPECT_EQ(snapshot->num_blocks(), 8u + 1 + 4 + 4 + 8);

  // Its end is where the sequence may still go back to; writing into what it shares is refused.
  const Status refused = life->state.rollback(511);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("others share the block that it would write (window)"),
            std::string::npos);
  EXPECT_TRUE(life->state.rollback(512));
  life->stamps.resize(512);

  Life other(world.pools, 4096), small(world.pools, 511);
  ASSERT_TRUE(other.state.restore(*snapshot));
  other.stamps = life->stamps;
  EXPECT_EQ(other.state.block_table(0)[0], -1);
  EXPECT_EQ(other.state.block_table(3)[2], life->state.block_table(3)[2]);
  EXPECT_FALSE(other.state.restore(*snapshot));
  EXPECT_EQ(small.state.restore(*snapshot).error().code, ErrorCode::out_of_range);
  ASSERT_TRUE(other.state.reserve(600));
  world.step(other, 88, random);

  life.reset();
  snapshot = StateSnapshot();
  world.check(other);
  EXPECT_TRUE(other.state.rollback(600 - 16));
  EXPECT_TRUE(other.state.rollback(0));
  for (uint32_t group = 0; group < kGroups.size(); ++group)
    EXPECT_EQ(world.pools.pool(group).free_blocks(), world.pools.pool(group).num_blocks());
}

TEST(SequenceStateGroups, RandomLivesReadWhatTokenByTokenWouldHaveWritten) {
  size_t exhausted = 0, restored = 0, refused_rollbacks = 0, rolled_back = 0;
  for (const uint32_t seed : {1u, 2u, 3u}) {
    World world({60, 90, 40, 40, 80});
    std::mt19937 random(seed);
    std::vector<std::unique_ptr<Life>> lives;
    std::vector<Kept> kept;
    for (int i = 0; i < 4000 && !testing::Test::HasFatalFailure(); ++i) {
      const auto choice = random() % 16;
      if (lives.empty() || (choice == 0 && lives.size() < 6)) {
        lives.push_back(std::make_unique<Life>(world.pools, 2000));
        if (!kept.empty() && random() % 2 == 0) {
          const Kept& from = kept[random() % kept.size()];
          ASSERT_TRUE(lives.back()->state.restore(from.snapshot));
          lives.back()->stamps = from.stamps;
          ++restored;
        }
        continue;
      }
      const size_t index = random() % lives.size();
      Life& life = *lives[index];
      const uint32_t length = life.state.length();
      if (choice < 8) {  // a step; prefill steps sometimes end where a snapshot can be
        uint32_t rows = random() % 3 == 0 ? 1 + random() % 150 : 1 + random() % 6;
        if (random() % 2 == 0) rows = 128 - length % 128;
        rows = std::min(rows, 2000 - length);
        const bool reserved = life.state.reserve(length + rows).has_value();
        if (rows > 0 && reserved) world.step(life, rows, random);
        if (!reserved) {
          ++exhausted;
          if (!kept.empty()) kept.erase(kept.begin());
          if (kept.empty()) lives.erase(lives.begin() + static_cast<std::ptrdiff_t>(index));
        }
      } else if (choice < 12 && length > 0) {  // drafts that were not accepted
        const uint32_t back = std::min(length, static_cast<uint32_t>(random() % (kRollbackSlack + 4)));
        if (life.state.rollback(length - back)) {
          life.stamps.resize(length - back);
          ++rolled_back;
        } else {
          ++refused_rollbacks;
        }
      } else if (choice < 14) {
        const uint32_t position = length / 128 * 128;
        if (position == 0) continue;
        if (auto snapshot = life.state.snapshot(position)) {
          kept.push_back({std::move(*snapshot), {life.stamps.begin(), life.stamps.begin() + position}});
          if (kept.size() > 4) kept.erase(kept.begin() + random() % 4);
        }
      } else if (choice == 14) {
        life.state.clear();
        life.stamps.clear();
      } else {
        lives.erase(lives.begin() + static_cast<std::ptrdiff_t>(index));
      }
      for (const auto& each : lives) world.check(*each);
      world.check_blocks(lives, kept);
    }
    lives.clear();
    world.check_blocks(lives, kept);
    kept.clear();
    world.check_blocks(lives, kept);
  }
  EXPECT_GT(exhausted, 20u);
  EXPECT_GT(restored, 20u);
  EXPECT_GT(refused_rollbacks, 5u);
  EXPECT_GT(rolled_back, 500u);
}

}  // namespace
}  // namespace tandem
