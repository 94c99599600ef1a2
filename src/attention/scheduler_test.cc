#include "attention/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

namespace tandem {
namespace {

class NoSink final : public GenerationSink {
  void on_token(const TokenEvent&) override {}
  void on_finish(const Finish&) override {}
};

StateGroupSpec group_of(uint32_t tokens_per_block, uint32_t retain_tokens = 0) {
  return {.layers = {0},
          .tokens_per_block = tokens_per_block,
          .bytes_per_block = 64,
          .retain_tokens = retain_tokens};
}

struct Fixture {
  explicit Fixture(uint32_t num_blocks, SchedulerLimits limits = {})
      : Fixture({group_of(16)}, {num_blocks}, limits) {}
  Fixture(const std::vector<StateGroupSpec>& groups, const std::vector<uint32_t>& num_blocks,
          SchedulerLimits limits, bool caches = false)
      : pools(*StatePools::create(groups, num_blocks)),
        cache(caches ? PrefixCache::create(pools) : nullptr),
        scheduler(limits, cache.get()) {}

  Sequence& add(uint32_t prompt_tokens, int32_t priority = 0) {
    GenerationRequest request;
    request.prompt.assign(prompt_tokens, 7);
    request.priority = priority;
    auto sequence =
        std::make_unique<Sequence>(next_id++, std::move(request), std::make_shared<NoSink>(), pools, 4096);
    Sequence& added = *sequence;
    scheduler.add(std::move(sequence));
    return added;
  }
  // What the worker does with a finished step, the sampled token being 9.
  void complete(const std::vector<StepPart>& parts) {
    for (const StepPart& part : parts) {
      const bool samples = part.samples;
      scheduler.finish_part(part);
      scheduler.settle(*part.sequence);
      if (samples) part.sequence->tokens.push_back(9);
    }
  }
  std::vector<StepPart> decode(uint32_t max_rows = UINT32_MAX) {
    std::vector<StepPart> parts;
    out_of_blocks.clear();
    scheduler.plan_decode(max_rows, max_drafts, parts, out_of_blocks);
    return parts;
  }
  std::vector<StepPart> prefill() {
    std::vector<StepPart> parts;
    scheduler.plan_prefill(parts);
    return parts;
  }

  StatePools pools;
  std::unique_ptr<PrefixCache> cache;
  Scheduler scheduler;
  RequestId next_id = 1;
  std::vector<Sequence*> out_of_blocks;
  uint32_t max_drafts = 0;
};

TEST(Scheduler, APromptIsCutIntoChunksAndThenDecodes) {
  Fixture f(100, {4, 32});
  Sequence& sequence = f.add(70);
  std::vector<uint32_t> chunks;
  for (int i = 0; i < 3; ++i) {
    const auto parts = f.prefill();
    ASSERT_EQ(parts.size(), 1u);
    EXPECT_TRUE(f.decode().empty());  // in a step: not planned twice
    chunks.push_back(parts[0].rows);
    EXPECT_EQ(parts[0].samples, i == 2);
    f.complete(parts);
  }
  EXPECT_EQ(chunks, (std::vector<uint32_t>{32, 32, 6}));
  EXPECT_TRUE(f.prefill().empty());
  const auto parts = f.decode();
  ASSERT_EQ(parts.size(), 1u);
  EXPECT_EQ(parts[0].sequence, &sequence);
}

TEST(Scheduler, ASyntheticPromptComputesItsLastTokenAlone) {
  Fixture f({group_of(16), group_of(16, /*retain_tokens=*/32)}, {10, 8},
            {.max_num_seqs = 4, .max_num_batched_tokens = 32, .synthetic_prompts = true});
  Sequence& first = f.add(100);
  Sequence& second = f.add(100);  // its blocks are not there yet
  Sequence& third = f.add(1);
  auto parts = f.prefill();
  ASSERT_EQ(parts.size(), 1u);
  EXPECT_EQ(parts[0].sequence, &first);
  EXPECT_EQ(parts[0].rows, 1u);
  EXPECT_TRUE(parts[0].samples);
  EXPECT_EQ(first.state.length(), 99u);
  EXPECT_EQ(first.state.block_table(0).size(), 7u);
  EXPECT_EQ(first.state.block_table(1).front(), -1);  // out of a window's reach: given back
  EXPECT_EQ(second.state.length(), 0u);
  EXPECT_FALSE(second.state.holds_blocks());
  f.complete(parts);
  EXPECT_TRUE(first.is_decoding());
  EXPECT_EQ(first.tokens.size(), 101u);

  f.scheduler.remove(first);
  parts = f.prefill();
  ASSERT_EQ(parts.size(), 2u);
  EXPECT_EQ(parts[0].sequence, &second);
  EXPECT_EQ(parts[1].sequence, &third);
  EXPECT_EQ(parts[1].rows, 1u);
  f.complete(parts);
  EXPECT_EQ(f.decode().size(), 2u);
}

TEST(Scheduler, DraftsAreRowsOfTheSequenceAndPushNobodyOut) {
  Fixture f(4, {4, 64});
  Sequence& old = f.add(30);
  Sequence& young = f.add(15);
  f.complete(f.prefill());
  old.drafts = {1, 2, 3, 4};
  young.drafts = {5, 6};
  f.max_drafts = 3;
  auto parts = f.decode();
  // 31 tokens and three more take a third block; the younger one has a row left in its own, and none to take.
  ASSERT_EQ(parts.size(), 2u);
  EXPECT_EQ(parts[0].drafts, 3u);
  EXPECT_EQ(parts[0].rows, 4u);
  EXPECT_EQ(parts[0].logit_rows(), 4u);
  EXPECT_EQ(old.state.block_table().size(), 3u);
  EXPECT_EQ(parts[1].sequence, &young);
  EXPECT_EQ(parts[1].drafts, 0u);
  EXPECT_EQ(parts[1].rows, 1u);
  EXPECT_EQ(f.scheduler.num_preempted(), 0u);
  f.complete(parts);
  f.max_drafts = 0;
  young.drafts = {5};
  ASSERT_TRUE(old.state.rollback(31));
  parts = f.decode();
  ASSERT_FALSE(parts.empty());
  for (const StepPart& part : parts) EXPECT_EQ(part.rows, 1u);
}

TEST(Scheduler, SeveralPromptsShareOneStepInOrderOfArrival) {
  Fixture f(100, {3, 32});
  f.add(20);
  f.add(20);
  f.add(1);
  f.add(1);
  const auto parts = f.prefill();
  ASSERT_EQ(parts.size(), 2u);
  EXPECT_EQ(parts[0].rows, 20u);
  EXPECT_EQ(parts[1].rows, 12u);
  f.complete(parts);
  const auto next = f.prefill();  // max_num_seqs 3: the fourth waits
  ASSERT_EQ(next.size(), 2u);
  EXPECT_EQ(next[0].rows, 8u);
  EXPECT_EQ(next[1].rows, 1u);
  EXPECT_EQ(f.scheduler.num_waiting(), 1u);
}

TEST(Scheduler, TheYoungestGivesItsBlocksToTheOldest) {
  Fixture f(4, {4, 512});
  Sequence& old = f.add(32);
  Sequence& young = f.add(32);
  f.complete(f.prefill());
  EXPECT_EQ(f.pools.pool(0).free_blocks(), 0u);
  const auto parts = f.decode();  // the 33rd token of `old` needs a block
  ASSERT_EQ(parts.size(), 1u);
  EXPECT_EQ(parts[0].sequence, &old);
  EXPECT_EQ(f.scheduler.num_preempted(), 1u);
  EXPECT_EQ(young.state.length(), 0u);
  EXPECT_EQ(young.tokens.size(), 33u);  // what was generated is kept and computed again
}

TEST(Scheduler, ASequenceInAStepIsNotPreempted) {
  Fixture f(4, {4, 512});
  f.add(32);
  f.complete(f.prefill());
  f.add(32);
  const auto prefill = f.prefill();
  ASSERT_EQ(prefill.size(), 1u);
  EXPECT_TRUE(f.decode().empty());
  EXPECT_TRUE(f.out_of_blocks.empty());  // not alone: it waits
  f.complete(prefill);
  EXPECT_EQ(f.decode().size(), 1u);
}

TEST(Scheduler, AloneAndOutOfBlocksIsReported) {
  Fixture f(2, {4, 512});
  Sequence& sequence = f.add(32);
  f.complete(f.prefill());
  EXPECT_TRUE(f.decode().empty());
  EXPECT_EQ(f.out_of_blocks, (std::vector<Sequence*>{&sequence}));
}

TEST(Scheduler, DecodeLanesTakeTheirShareOldestFirst) {
  Fixture f(100, {8, 512});
  std::vector<Sequence*> all;
  for (int i = 0; i < 5; ++i) all.push_back(&f.add(4));
  EXPECT_EQ(f.scheduler.num_decoding(), 0u);
  f.complete(f.prefill());
  EXPECT_EQ(f.scheduler.num_decoding(), 5u);
  const auto first = f.decode(3), second = f.decode(3);
  ASSERT_EQ(first.size(), 3u);
  ASSERT_EQ(second.size(), 2u);
  for (size_t i = 0; i < 5; ++i) EXPECT_EQ((i < 3 ? first[i] : second[i - 3]).sequence, all[i]);
  EXPECT_EQ(f.scheduler.num_decoding(), 5u);  // those that a lane has count too
  EXPECT_TRUE(f.decode(3).empty());
  f.complete(second);  // a lane that is done takes what is free, not what another lane has
  const auto third = f.decode(3);
  ASSERT_EQ(third.size(), 2u);
  EXPECT_EQ(third[0].sequence, all[3]);
}

TEST(Scheduler, ByTokenSharesAreEvenInOrderAndCutParts) {
  Fixture f(100, {8, 512});
  Sequence &a = f.add(70), &b = f.add(3), &c = f.add(9);
  const auto parts = f.prefill();
  ASSERT_EQ(parts.size(), 3u);
  for (const size_t lanes : {1u, 2u, 3u, 7u, 100u}) {
    std::vector<std::vector<StepPart>> shares(lanes);
    split_by_token(parts, shares);
    uint32_t largest = 0, smallest = UINT32_MAX, position = 0;
    const Sequence* before = nullptr;
    std::vector<const Sequence*> order, samples;
    for (const auto& share : shares) {
      uint32_t rows = 0;
      for (const StepPart& part : share) {
        if (part.sequence != before) position = 0;
        before = part.sequence;
        ASSERT_GT(part.rows, 0u);
        ASSERT_EQ(part.offset, position);  // in order, without gaps
        position += part.rows;
        rows += part.rows;
        const bool ends = position == (part.sequence == &a ? 70u : part.sequence == &b ? 3u : 9u);
        EXPECT_EQ(part.samples, ends);
        EXPECT_EQ(part.last, ends);
        if (ends) order.push_back(part.sequence);
      }
      largest = std::max(largest, rows);
      smallest = std::min(smallest, rows);
    }
    EXPECT_LE(largest - smallest, 1u) << lanes;
    EXPECT_EQ(order, (std::vector<const Sequence*>{&a, &b, &c}));
  }
}

TEST(Scheduler, UrgentOnesGoFirstAndTakePlacesAndBlocks) {
  Fixture f(6, {2, 64});
  Sequence& late = f.add(20, 5);
  Sequence& usual = f.add(20);
  f.complete(f.prefill());
  Sequence& urgent = f.add(20, -1);
  Sequence& also_late = f.add(20, 5);
  // Both places are taken: the least urgent gives its own up.
  auto parts = f.prefill();
  ASSERT_EQ(parts.size(), 1u);
  EXPECT_EQ(parts[0].sequence, &urgent);
  EXPECT_EQ(f.scheduler.num_preempted(), 1u);
  EXPECT_FALSE(late.state.holds_blocks());
  f.complete(parts);
  EXPECT_TRUE(f.prefill().empty());  // an equal does not: `late` and `also_late` wait, in this order
  parts = f.decode();
  ASSERT_EQ(parts.size(), 2u);
  EXPECT_EQ(parts[0].sequence, &urgent);
  EXPECT_EQ(parts[1].sequence, &usual);
  f.complete(parts);
  f.scheduler.remove(urgent);
  parts = f.prefill();
  ASSERT_EQ(parts.size(), 1u);
  EXPECT_EQ(parts[0].sequence, &late);
  EXPECT_EQ(parts[0].rows, 21u);  // with what it had said
  f.complete(parts);
  // Blocks: 2 of `late`, 2 of `usual`, 2 free; 60 tokens want four.
  f.scheduler.remove(also_late);
  Sequence& large = f.add(60, -2);
  parts = f.prefill();
  ASSERT_EQ(parts.size(), 1u);
  EXPECT_EQ(parts[0].sequence, &large);
  EXPECT_TRUE(usual.state.holds_blocks());
  EXPECT_FALSE(late.state.holds_blocks());
}

// Decode steps that follow each other keep their sequences in a step whenever a prefill plan looks.
TEST(Scheduler, WayIsMadeBeforeTheNextDecodeStep) {
  for (const bool for_blocks : {false, true}) {
    Fixture f(for_blocks ? 3 : 100, {for_blocks ? 4u : 1u, 64});
    Sequence& usual = f.add(30);
    f.complete(f.prefill());
    Sequence& urgent = f.add(30, -1);
    bool taken_in = false;
    for (int i = 0; i < 3 && !taken_in; ++i) {
      f.scheduler.make_way();
      const auto decode = f.decode();
      const auto prefill = f.prefill();
      taken_in = !prefill.empty() && prefill[0].sequence == &urgent;
      f.complete(decode);
      f.complete(prefill);
    }
    EXPECT_TRUE(taken_in) << for_blocks;
    EXPECT_FALSE(usual.state.holds_blocks());
  }
}

TEST(Scheduler, ChunksAreAsShortAsAsked) {
  Fixture f(100, {4, 64});
  f.add(100);
  std::vector<StepPart> parts;
  f.scheduler.plan_prefill(parts, 10);
  ASSERT_EQ(parts.size(), 1u);
  EXPECT_EQ(parts[0].rows, 10u);
  EXPECT_EQ(f.scheduler.num_prefilling(), 1u);
  f.add(5);
  EXPECT_EQ(f.scheduler.num_prefilling(), 2u);
}

TEST(Scheduler, RandomLoadEndsWithoutLeaksStarvationOrReordering) {
  std::mt19937 generator(5);
  const auto random = [&] { return static_cast<uint32_t>(generator()); };
  uint64_t hits = 0;
  for (int round = 0; round < 40; ++round) {
    // Every other round over several groups, now the one and now the other the scarcest.
    const uint32_t blocks = 6 + random() % 30;
    const std::vector<StateGroupSpec> groups =
        round % 2 == 0 ? std::vector{group_of(16)}
                       : std::vector{group_of(16, 32), group_of(128), group_of(8, 8)};
    const std::vector<uint32_t> sizes =
        round % 2 == 0 ? std::vector{blocks} : std::vector{blocks, 2 + random() % 6, 4 + random() % 20};
    Fixture f(groups, sizes, {1 + random() % 8, 1 + random() % 64}, round % 4 < 2);
    const bool urgency = round % 3 == 0;
    const auto longest = static_cast<uint32_t>(f.pools.max_sequence_tokens());
    std::map<Sequence*, uint32_t> wanted;  // tokens to generate
    std::vector<StepPart> in_flight[2];
    int to_add = 60;
    int steps = 0;
    while (to_add > 0 || !wanted.empty()) {
      ASSERT_LT(++steps, 200000) << "no progress";
      if (to_add > 0 && random() % 3 == 0) {
        Sequence& added = f.add(1 + random() % longest, urgency ? static_cast<int32_t>(random() % 3) : 0);
        wanted[&added] = 1 + random() % 40;
        --to_add;
      }
      // Somebody leaves, wherever it is; in a step when that ends.
      if (random() % 200 == 0 && !wanted.empty()) {
        Sequence& leaves = *std::next(wanted.begin(), static_cast<long>(random() % wanted.size()))->first;
        if (!leaves.in_step) {
          wanted.erase(&leaves);
          f.scheduler.remove(leaves);
        }
      }
      const auto lane = random() % 2;
      if (in_flight[lane].empty()) {
        f.scheduler.make_way();
        in_flight[lane] = lane == 0 ? f.decode() : f.prefill();
        for (Sequence* sequence : lane == 0 ? f.out_of_blocks : std::vector<Sequence*>{}) {
          wanted.erase(sequence);
          f.scheduler.remove(*sequence);
        }
        for (const StepPart& part : in_flight[lane]) {
          for (uint32_t group = 0; group < groups.size(); ++group) {
            ASSERT_GE(part.sequence->state.block_table(group).size() * groups[group].tokens_per_block,
                      part.sequence->state.length() + part.rows);
          }
        }
      } else {
        const auto parts = std::exchange(in_flight[lane], {});
        if (random() % 20 == 0) {  // a failed step
          for (const StepPart& part : parts) f.scheduler.drop_part(part);
        } else {
          f.complete(parts);
        }
        for (const StepPart& part : parts) {
          if (part.sequence->generated() >= wanted.at(part.sequence) || random() % 50 == 0) {
            wanted.erase(part.sequence);
            f.scheduler.remove(*part.sequence);
          }
        }
      }
    }
    for (uint32_t group = 0; group < groups.size(); ++group)
      EXPECT_EQ(f.pools.pool(group).free_blocks(), sizes[group]);
    hits += f.scheduler.hit_tokens();
    EXPECT_EQ(f.scheduler.num_running() + f.scheduler.num_waiting(), 0u);
  }
  EXPECT_GT(hits, 1000u);
}

// A group that retains 32 tokens beside one that keeps all: 3 blocks of 16 and the one in work, or fewer.
TEST(Scheduler, APromptTakesRetainedBlocksChunkByChunk) {
  Fixture f({group_of(16, 32), group_of(128)}, {8, 10}, {4, 64});
  Sequence& sequence = f.add(400);
  for (int i = 0; i < 6; ++i) {
    const auto parts = f.prefill();
    ASSERT_EQ(parts.size(), 1u);
    EXPECT_EQ(parts[0].rows, 64u);
    EXPECT_EQ(f.pools.pool(1).free_blocks(), 10u - 4);  // the whole prompt
    EXPECT_LE(f.pools.pool(0).num_blocks() - f.pools.pool(0).free_blocks(), 3u + 4);
    f.complete(parts);
  }
  EXPECT_EQ(sequence.state.length(), 384u);
  EXPECT_EQ(f.pools.pool(0).free_blocks(), 8u - 3);
}

TEST(Scheduler, AloneAPromptGoesOnInShorterChunksWhereARetainedGroupIsSmall) {
  Fixture f({group_of(16, 32), group_of(128)}, {4, 10}, {4, 200});
  Sequence& sequence = f.add(1000);
  for (int i = 0; i < 1000 && !sequence.is_decoding(); ++i) {
    const auto parts = f.prefill();
    ASSERT_EQ(parts.size(), 1u);
    f.complete(parts);
  }
  EXPECT_TRUE(sequence.is_decoding());
  ASSERT_EQ(f.decode().size(), 1u);
}

TEST(Scheduler, TheYoungestGivesBlocksOfEveryGroupBack) {
  Fixture f({group_of(16, 32), group_of(128)}, {6, 10}, {4, 200});
  Sequence& old = f.add(40);
  Sequence& young = f.add(40);
  f.complete(f.prefill());
  EXPECT_EQ(f.pools.pool(0).free_blocks(), 0u);
  EXPECT_EQ(f.pools.pool(1).free_blocks(), 8u);
  for (int i = 0; i < 8; ++i) f.complete(f.decode());
  EXPECT_EQ(f.scheduler.num_preempted(), 0u);
  f.complete(f.decode());  // row 48 of the old one begins a block
  EXPECT_EQ(f.scheduler.num_preempted(), 1u);
  EXPECT_EQ(old.state.length(), 49u);
  EXPECT_EQ(f.pools.pool(1).free_blocks(), 9u);
  EXPECT_FALSE(young.state.holds_blocks());
  EXPECT_EQ(young.state.length(), 0u);
}

}  // namespace
}  // namespace tandem
