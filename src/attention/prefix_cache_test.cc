// The prefix cache against a model that knows only what each position's state was computed from: whatever is
// found, evicted, forked or written for the second time, a row reads the state of its own text.
#include "attention/prefix_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <set>

namespace tandem {
namespace {

StateGroupSpec group_of(uint32_t tokens_per_block, uint32_t retain = 0, uint32_t every = 0) {
  StateGroupSpec made;
  made.name = "of " + std::to_string(tokens_per_block);
  made.layers = {0};
  made.tokens_per_block = tokens_per_block;
  made.bytes_per_block = 8;
  made.retain_tokens = retain;
  made.snapshot_every = every;
  return made;
}

const std::vector<StateGroupSpec> kPaged = {group_of(16)};
// A model with a window, pending inputs of two compressors, and their entries.
const std::vector<StateGroupSpec> kGrouped = {group_of(16, 128, 128), group_of(8, 8, 128),
                                              group_of(16, 128, 128), group_of(128, 0, 128)};

uint64_t mixed(uint64_t hash, uint64_t value) {
  return (hash ^ (value + 1)) * 0x9e3779b97f4a7c15u + (hash >> 29);
}

uint64_t one_hash(uint64_t, std::span<const int32_t>) {
  return 7;
}

struct Life {
  Life(StatePools& pools, std::vector<int32_t> text, const std::string& salt)
      : state(pools, 4000), tokens(std::move(text)) {
    use.salt = salt;
  }
  // What a position's state was computed from: the text up to it. The drafter's also has the token behind.
  uint64_t stamp(uint32_t position) const {
    uint64_t hash = std::hash<std::string>()(use.salt);
    for (uint32_t i = 0; i <= position; ++i) hash = mixed(hash, static_cast<uint64_t>(tokens[i]));
    return hash;
  }
  std::vector<uint64_t> stamps(uint32_t end) const {
    std::vector<uint64_t> all;
    uint64_t hash = std::hash<std::string>()(use.salt);
    for (uint32_t i = 0; i < end; ++i) all.push_back(hash = mixed(hash, static_cast<uint64_t>(tokens[i])));
    return all;
  }
  uint64_t draft_stamp(uint64_t stamp, uint32_t position) const {
    return mixed(stamp, static_cast<uint64_t>(tokens[position + 1]));
  }
  SequenceState state;
  std::vector<int32_t> tokens;
  PrefixUse use;
  bool is_drafting = false;
};

class World {
 public:
  World(std::vector<StateGroupSpec> specs, const std::vector<uint32_t>& num_blocks,
        PrefixCacheOptions options = {})
      : groups(std::move(specs)), pools(*StatePools::create(groups, num_blocks)) {
    for (uint32_t group = 0; group < groups.size(); ++group)
      memory_.emplace_back(size_t{num_blocks[group]} * groups[group].tokens_per_block);
    cache = PrefixCache::create(pools, options);
  }

  std::unique_ptr<Life> begin(std::vector<int32_t> text, const std::string& salt = "", uint32_t worth = 0) {
    auto life = std::make_unique<Life>(pools, std::move(text), salt);
    attach(*life, worth);
    return life;
  }
  uint32_t attach(Life& life, uint32_t worth = 0) {
    const uint32_t found = cache->attach(life.state, life.tokens, worth, life.use);
    EXPECT_EQ(found, life.state.length());
    EXPECT_EQ(found, life.use.attached);
    EXPECT_LT(found, life.tokens.size());
    life.is_drafting = drafting && life.use.drafted == found;
    return found;
  }
  // Computes the next `rows` tokens of the text, and says `next` where they end with it. `noise`: rows behind
  // them, of drafts that turn out to be wrong.
  bool step(Life& life, uint32_t rows, int32_t next, uint32_t noise = 0) {
    const uint32_t begin = life.state.length(), end = begin + rows;
    if (!life.state.reserve(end + noise, static_cast<uint32_t>(life.tokens.size()))) return false;
    const std::vector<uint64_t> stamps = life.stamps(end);
    for (uint32_t group = 0; group < groups.size(); ++group) {
      for (uint32_t position = begin; position < end + noise; ++position)
        at(life, group, position)->text = position < end ? stamps[position] : 1234567 + position;
    }
    for (uint32_t position = begin; position < end; ++position) check_row(life, position, stamps);
    life.state.advance(rows + noise);
    if (end == life.tokens.size()) life.tokens.push_back(next);
    EXPECT_TRUE(life.state.rollback(end));
    for (uint32_t position = begin; life.is_drafting && position < end; ++position) {
      for (uint32_t group = 0; group < groups.size(); ++group)
        at(life, group, position)->draft = life.draft_stamp(stamps[position], position);
    }
    if (life.is_drafting) life.use.drafted = end;
    cache->store(life.state, life.tokens, life.use);
    life.state.trim();
    return true;
  }
  // All of the text; the state is that of the whole prompt, and one token is said.
  void compute(Life& life, uint32_t chunk = 64) {
    while (life.state.length() + 1 < life.tokens.size() || life.state.length() == 0) {
      const auto left = static_cast<uint32_t>(life.tokens.size()) - life.state.length();
      ASSERT_TRUE(step(life, std::min(chunk, left), 0));
    }
  }
  void end(Life& life) {
    cache->store(life.state, life.tokens, life.use);
    life.state.clear();
    life.use.forget();
  }

  // What the next row could read.
  void check(const Life& life) {
    const uint32_t length = life.state.length();
    check_reach(life, length, length, life.stamps(length));
  }
  // Every block has an owner or is free.
  void check_blocks(const std::vector<std::unique_ptr<Life>>& lives) {
    for (uint32_t group = 0; group < groups.size(); ++group) {
      std::set<int32_t> owned;
      for (const auto& life : lives) {
        for (const int32_t block : life->state.block_table(group)) {
          if (block >= 0) owned.insert(block);
        }
      }
      ASSERT_EQ(owned.size() + pools.pool(group).free_blocks(), pools.pool(group).num_blocks());
      ASSERT_LE(pools.pool(group).kept_blocks(), pools.pool(group).num_blocks());
    }
  }

  std::vector<StateGroupSpec> groups;
  StatePools pools;
  std::unique_ptr<PrefixCache> cache;
  bool drafting = false;

 private:
  struct Stamps {
    uint64_t text = 0, draft = 0;
  };
  Stamps* at(const Life& life, uint32_t group, uint32_t position) {
    const uint32_t tokens = groups[group].tokens_per_block;
    const int32_t block = life.state.block_table(group)[position / tokens];
    EXPECT_GE(block, 0) << groups[group].name << " position " << position;
    return &memory_[group].at(static_cast<size_t>(block) * tokens + position % tokens);
  }
  void check_row(const Life& life, uint32_t position, const std::vector<uint64_t>& stamps) {
    check_reach(life, position, position + 1, stamps);
  }
  void check_reach(const Life& life, uint32_t position, uint32_t end, const std::vector<uint64_t>& stamps) {
    for (uint32_t group = 0; group < groups.size(); ++group) {
      const uint32_t retain = groups[group].retain_tokens;
      const uint32_t first = retain == 0 || position < retain ? 0 : position - retain;
      for (uint32_t reached = first; reached < end; ++reached) {
        ASSERT_EQ(at(life, group, reached)->text, stamps[reached])
            << groups[group].name << " position " << reached << " of a row at " << position;
        if (!life.is_drafting || reached >= life.use.drafted) continue;
        ASSERT_EQ(at(life, group, reached)->draft, life.draft_stamp(stamps[reached], reached))
            << groups[group].name << " draft at " << reached << " of a row at " << position;
      }
    }
  }

  std::vector<std::vector<Stamps>> memory_;  // [groups][blocks * tokens_per_block]
};

std::vector<int32_t> text_of(uint32_t seed, uint32_t length) {
  std::mt19937 random(seed);
  std::vector<int32_t> text;
  for (uint32_t i = 0; i < length; ++i) text.push_back(static_cast<int32_t>(random() % 1000));
  return text;
}

TEST(PrefixCache, AtLeastTheLastTokenIsComputed) {
  World world(kPaged, {100});
  for (const uint32_t length : {1u, 15u, 16u, 17u, 31u, 32u, 33u}) {
    for (const uint32_t chunk : {1u, 16u, 17u}) {
      const auto life = world.begin(text_of(length * 100 + chunk, length));
      EXPECT_EQ(life->state.length(), 0u);
      world.compute(*life, chunk);
      world.end(*life);
      const auto again = world.begin(text_of(length * 100 + chunk, length));
      EXPECT_EQ(again->state.length(), (length - 1) / 16 * 16) << length;
      world.compute(*again, chunk);
      world.end(*again);
    }
  }
  EXPECT_EQ(world.pools.pool(0).free_blocks(), 100u);
}

TEST(PrefixCache, WhatIsInUseIsPinnedAndTheOldestGoesFirst) {
  World world(kPaged, {10});
  const auto used = world.begin(text_of(1, 33));  // 3 blocks
  world.compute(*used);
  for (const uint32_t seed : {2u, 3u}) {
    const auto life = world.begin(text_of(seed, 48));
    world.compute(*life);
    world.end(*life);
  }
  // 3 in use, of two others 3 each, one never used; the next needs 3: one of the second, and its last first.
  const auto life = world.begin(text_of(4, 48));
  world.compute(*life);
  world.end(*life);
  EXPECT_EQ(world.begin(text_of(1, 33))->state.length(), 32u);
  EXPECT_EQ(world.begin(text_of(4, 48))->state.length(), 32u);
  EXPECT_EQ(world.begin(text_of(3, 49))->state.length(), 48u);
  EXPECT_EQ(world.begin(text_of(2, 49))->state.length(), 16u);
  EXPECT_EQ(world.pools.pool(0).free_blocks(), 7u);
  // Found again it is young again: of the others the longest unused goes now.
  ASSERT_EQ(world.begin(text_of(2, 49))->state.length(), 16u);
  const auto more = world.begin(text_of(5, 32));
  world.compute(*more);
  EXPECT_EQ(world.begin(text_of(2, 49))->state.length(), 16u);
  EXPECT_LT(world.begin(text_of(4, 48))->state.length(), 32u);
}

TEST(PrefixCache, ATreeGoesWithTheUnitThatIsTaken) {
  World world(kPaged, {6});
  const auto first = world.begin(text_of(1, 80)), second = world.begin(text_of(2, 16));
  world.compute(*first);
  EXPECT_EQ(world.cache->num_units(), 5u);
  world.end(*first);
  world.compute(*second);
  EXPECT_EQ(world.cache->num_units(), 6u);
  // 17 tokens need a second block: the last unit of the first text is taken, and what is left of it is found.
  ASSERT_TRUE(world.step(*second, 1, 0));
  EXPECT_EQ(world.cache->num_units(), 5u);
  EXPECT_EQ(world.begin(text_of(1, 80))->state.length(), 64u);
  world.cache->clear();
  EXPECT_EQ(world.cache->num_units(), 0u);
  EXPECT_EQ(world.pools.pool(0).kept_blocks(), 0u);
  EXPECT_EQ(world.begin(text_of(1, 80))->state.length(), 0u);
  world.check(*second);
}

TEST(PrefixCache, SaltsShareNothing) {
  World world(kPaged, {50});
  const auto life = world.begin(text_of(1, 40), "a");
  world.compute(*life);
  world.end(*life);
  EXPECT_EQ(world.begin(text_of(1, 40), "a")->state.length(), 32u);
  EXPECT_EQ(world.begin(text_of(1, 40), "b")->state.length(), 0u);
  EXPECT_EQ(world.begin(text_of(1, 40))->state.length(), 0u);
  Life whole(world.pools, text_of(1, 40), "a");
  whole.use.may_read = false;
  EXPECT_EQ(world.attach(whole), 0u);
}

TEST(PrefixCache, TheSameComputedTwiceKeepsOneCopy) {
  World world(kPaged, {50});
  const auto first = world.begin(text_of(1, 64)), second = world.begin(text_of(1, 64));
  world.compute(*first);
  world.compute(*second);  // began before the first had stored anything
  EXPECT_EQ(world.pools.pool(0).kept_blocks(), 4u);
  world.end(*first);
  EXPECT_EQ(world.pools.pool(0).kept_blocks(), 4u);
  const auto third = world.begin(text_of(1, 64));
  EXPECT_EQ(third->state.length(), 48u);
  world.compute(*third);
  world.check(*third);
}

TEST(PrefixCache, RetainedGroupsResumeAtTheEndOfPromptsAndWhereTextsPart) {
  World world(kGrouped, {60, 60, 60, 40});
  auto text = text_of(1, 300);
  const auto first = world.begin(text);
  world.compute(*first, 512);
  world.end(*first);
  EXPECT_EQ(world.begin(text)->state.length(), 256u);
  // Another text parts at 200 tokens: of the first 128 there is no window any more, but from now on there is.
  std::ranges::copy(text_of(2, 100), text.begin() + 200);
  const auto second = world.begin(text);
  EXPECT_EQ(second->state.length(), 0u);
  world.compute(*second, 512);
  world.end(*second);
  std::ranges::copy(text_of(3, 100), text.begin() + 200);
  const auto third = world.begin(text);
  EXPECT_EQ(third->state.length(), 128u);
  world.compute(*third, 50);
  world.check(*third);
  // A long answer has one point, its last.
  for (int32_t i = 0; i < 300; ++i) ASSERT_TRUE(world.step(*third, 1, i % 11));
  const std::vector<int32_t> said = third->tokens;
  world.end(*third);
  EXPECT_EQ(world.begin(said)->state.length(), 512u);
  EXPECT_EQ(world.begin({said.begin(), said.begin() + 500})->state.length(), 256u);
}

TEST(PrefixCache, WithADrafterTheTokenBehindAUnitBelongsToIt) {
  World world(kPaged, {50}, {.lookahead = 1});
  world.drafting = true;
  world.cache->set_drafting(true);
  const auto life = world.begin(text_of(1, 60));
  world.compute(*life, 20);
  world.end(*life);
  const auto again = world.begin(text_of(1, 60));
  EXPECT_EQ(again->state.length(), 48u);
  EXPECT_TRUE(again->is_drafting);
  world.check(*again);
  auto other = text_of(1, 60);
  other[32] += 1;
  EXPECT_EQ(world.begin(other)->state.length(), 16u);
}

TEST(PrefixCache, RowsAreComputedAgainForADrafterWhereThatIsWorthIt) {
  World world(kPaged, {50}, {.lookahead = 1});
  const auto undrafted = world.begin(text_of(1, 100));
  world.compute(*undrafted);
  world.end(*undrafted);
  world.drafting = true;
  world.cache->set_drafting(true);
  EXPECT_EQ(world.begin(text_of(1, 100), "", 95)->state.length(), 96u);
  const auto life = world.begin(text_of(1, 100), "", 96);
  EXPECT_EQ(life->state.length(), 0u);
  world.compute(*life);
  world.end(*life);
  const auto again = world.begin(text_of(1, 100), "", 0);
  EXPECT_EQ(again->state.length(), 96u);
  EXPECT_TRUE(again->is_drafting);
  world.check(*again);
  EXPECT_EQ(world.pools.pool(0).kept_blocks(), 6u);
}

// Texts of a few phrases: they part and meet in the middle of blocks, often.
std::vector<int32_t> random_text(std::mt19937& random) {
  std::vector<int32_t> text;
  const auto phrases = 1 + random() % 6;
  for (uint32_t i = 0; i < phrases; ++i) {
    const auto phrase = static_cast<uint32_t>(random() % 4);
    const std::vector<int32_t> more = text_of(phrase, 40 + phrase * 37);
    text.insert(text.end(), more.begin(), more.end());
  }
  text.resize(1 + random() % text.size());
  return text;
}

struct Case {
  std::vector<StateGroupSpec> groups;
  std::vector<uint32_t> num_blocks;
  PrefixCacheOptions options;
  bool drafts = false;
};

void random_lives(const Case& given, uint32_t seed) {
  World world(given.groups, given.num_blocks, given.options);
  std::mt19937 random(seed);
  std::vector<std::unique_ptr<Life>> lives;
  size_t found = 0, exhausted = 0, preempted = 0;
  for (int i = 0; i < 8000 && !testing::Test::HasFailure(); ++i) {
    if (given.drafts && random() % 50 == 0) {
      world.drafting = !world.drafting;
      world.cache->set_drafting(world.drafting);
    }
    const auto choice = random() % 16;
    if (lives.empty() || (choice < 3 && lives.size() < 5)) {
      lives.push_back(world.begin(random_text(random), random() % 4 == 0 ? "salt" : "", random() % 200));
      found += lives.back()->state.length() > 0 ? 1 : 0;
    } else {
      const size_t index = random() % lives.size();
      Life& life = *lives[index];
      const auto pending = static_cast<uint32_t>(life.tokens.size()) - life.state.length();
      if (choice < 12) {
        const uint32_t rows = pending == 1 ? 1 : 1 + random() % std::min(pending, 200u);
        if (given.drafts && random() % 30 == 0) life.is_drafting = false;
        const auto noise = static_cast<uint32_t>(pending == 1 ? random() % 9 : 0);
        if (!world.step(life, rows, static_cast<int32_t>(random() % 3), noise)) {
          ++exhausted;
          world.end(*lives.front());
          lives.erase(lives.begin());
        }
      } else if (choice < 14) {
        world.end(life);
        ++preempted;
        world.attach(life, random() % 200);
      } else {
        world.end(life);
        lives.erase(lives.begin() + static_cast<std::ptrdiff_t>(index));
      }
    }
    for (const auto& life : lives) world.check(*life);
    world.check_blocks(lives);
  }
  for (const auto& life : lives) world.end(*life);
  lives.clear();
  world.check_blocks(lives);
  EXPECT_GT(found, 50u);
  EXPECT_GT(exhausted, 2u);
  EXPECT_GT(preempted, 20u);
  world.cache->clear();
  for (uint32_t group = 0; group < world.groups.size(); ++group) {
    EXPECT_EQ(world.pools.pool(group).kept_blocks(), 0u);
    EXPECT_EQ(world.pools.pool(group).free_blocks(), given.num_blocks[group]);
  }
}

TEST(PrefixCache, RandomLivesReadTheirOwnText) {
  random_lives({kPaged, {45}, {}}, 1);
  random_lives({kGrouped, {50, 90, 50, 11}, {}}, 2);
  random_lives({kGrouped, {34, 60, 36, 24}, {}}, 3);
}

TEST(PrefixCache, RandomLivesWithADrafterReadTheirOwnText) {
  random_lives({kPaged, {45}, {.lookahead = 1}, true}, 4);
  random_lives({kGrouped, {50, 90, 50, 11}, {.lookahead = 1}, true}, 5);
}

TEST(PrefixCache, CollisionsAreSlowerAndNeverWrong) {
  random_lives({kPaged, {45}, {.hash = one_hash}}, 6);
  random_lives({kGrouped, {50, 90, 50, 11}, {.lookahead = 1, .hash = one_hash}, true}, 7);
}

}  // namespace
}  // namespace tandem
