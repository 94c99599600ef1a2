#include "ffn/ffn_scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

namespace tandem {
namespace {

using std::chrono::milliseconds;

constexpr RowClass kDecode = RowClass::decode, kDraft = RowClass::draft, kPrefill = RowClass::prefill,
                   kProfile = RowClass::profile;

QueuedTile tile(LayerIndex layer, RowClass row_class, uint32_t rows, int waited_ms = 0, double behind = 0) {
  return {layer, row_class, rows, milliseconds(waited_ms), behind};
}

struct Case {
  const char* rule;
  std::vector<QueuedTile> waiting;
  ServedTime served;
  std::vector<uint32_t> picked;
};

TEST(FfnScheduler, Rules) {
  const Case cases[] = {
      {"nothing waits", {}, {}, {}},
      {"one tile", {tile(3, kDecode, 1)}, {}, {0}},
      {"decode before prefill", {tile(1, kPrefill, 64), tile(2, kDecode, 1)}, {100, 100}, {1}},
      {"draft runs with decode",
       {tile(2, kDraft, 4), tile(2, kDecode, 1), tile(2, kPrefill, 64)},
       {100, 100},
       {0, 1}},
      {"profile waits with prefill", {tile(2, kProfile, 64), tile(1, kDecode, 1)}, {100, 100}, {1}},
      {"prefill has a share: its turn", {tile(1, kPrefill, 64), tile(2, kDecode, 1)}, {90, 10}, {0}},
      {"prefill has had its share", {tile(1, kPrefill, 64), tile(2, kDecode, 1)}, {80, 20}, {1}},
      {"prefill alone needs no share", {tile(1, kPrefill, 64)}, {1, 99}, {0}},
      {"largest group at one layer",
       {tile(1, kDecode, 3), tile(2, kDecode, 2), tile(2, kDecode, 2), tile(3, kDecode, 1)},
       {},
       {1, 2}},
      {"rows count, not tiles", {tile(1, kDecode, 9), tile(2, kDecode, 2), tile(2, kDecode, 2)}, {}, {0}},
      {"equal size: the client furthest behind",
       {tile(1, kDecode, 2, 1, 0.5), tile(2, kDecode, 2, 1, 1.5), tile(3, kDecode, 2, 1, 1.0)},
       {},
       {1}},
      {"equal size and pace: the lowest layer", {tile(5, kDecode, 2), tile(4, kDecode, 2)}, {}, {1}},
      {"inside a group the furthest behind first",
       {tile(1, kDecode, 2, 1, 0.5), tile(1, kDecode, 2, 1, 1.5), tile(1, kDecode, 2, 9, 1.5)},
       {},
       {2, 1, 0}},
      {"age beats size", {tile(1, kDecode, 1, 25), tile(2, kDecode, 50), tile(2, kDecode, 50)}, {}, {0}},
      {"age takes its whole group",
       {tile(1, kDecode, 1, 25), tile(2, kDecode, 90), tile(1, kDecode, 1)},
       {},
       {0, 2}},
      {"the most overdue first", {tile(1, kDecode, 1, 25), tile(2, kDecode, 1, 30)}, {}, {1}},
      {"however old a prompt is, its class has a share and no more",
       {tile(1, kPrefill, 64, 9000), tile(2, kDecode, 1)},
       {10, 90},
       {1}},
      {"an old prompt goes before a large one",
       {tile(1, kPrefill, 64), tile(1, kPrefill, 64), tile(2, kPrefill, 8, 600)},
       {},
       {2}},
      {"a prompt is not old at the age of decode",
       {tile(1, kPrefill, 64), tile(1, kPrefill, 64), tile(2, kPrefill, 8, 100)},
       {},
       {0, 1}},
  };
  std::vector<uint32_t> picked = {99};
  for (const Case& item : cases) {
    FfnScheduler::next(item.waiting, {}, item.served, picked);
    EXPECT_EQ(picked, item.picked) << item.rule;
  }
}

QueuedTile tile_of(uint32_t client, uint64_t request, LayerIndex layer, uint32_t rows, double used_us,
                   int waited_ms = 0) {
  QueuedTile made = tile(layer, kDecode, rows, waited_ms);
  made.client = client;
  made.request = request;
  made.used_us = used_us;
  return made;
}

// One call takes 1 ms: a client is ahead 2 ms beyond the least.
TEST(FfnScheduler, ClientsThatAreAheadDecideNothing) {
  const ServedTime served{1000, 0, 1000, 0, 0};
  QueuedTile peer = tile_of(9, 1, 1, 300, 99000);
  peer.exempt = true;
  const struct {
    const char* rule;
    std::vector<QueuedTile> waiting;
    std::vector<uint32_t> picked;
  } cases[] = {
      {"a little more is no lead", {tile_of(1, 1, 1, 64, 1900), tile_of(2, 1, 2, 4, 0)}, {0}},
      {"who is ahead waits, however much it wants",
       {tile_of(1, 1, 1, 64, 2000), tile_of(2, 1, 2, 4, 0)},
       {1}},
      {"alone nobody is ahead", {tile_of(1, 1, 1, 64, 5000), tile_of(1, 2, 1, 64, 5000)}, {0, 1}},
      {"its age does not help who is ahead", {tile_of(1, 1, 1, 64, 5000, 100), tile_of(2, 1, 2, 4, 0)}, {1}},
      {"but nobody starves", {tile_of(1, 1, 1, 64, 5000, 330), tile_of(2, 1, 2, 4, 0)}, {0}},
      {"who is ahead rides along if it is no larger",
       {tile_of(1, 1, 2, 4, 5000), tile_of(2, 1, 2, 4, 0)},
       {1, 0}},
      {"and stays behind if it is", {tile_of(1, 1, 2, 5, 5000), tile_of(2, 1, 2, 4, 0)}, {1}},
      {"one request of each client, though more wait",
       {tile_of(1, 1, 2, 64, 0, 3), tile_of(1, 2, 2, 64, 0, 2), tile_of(2, 1, 2, 4, 0),
        tile_of(1, 3, 2, 60, 0)},
       {0, 2, 1}},
      {"all tiles of that request",
       {tile_of(1, 1, 2, 64, 0, 3), tile_of(1, 1, 2, 64, 0, 2), tile_of(2, 1, 2, 4, 0),
        tile_of(1, 2, 2, 64, 0)},
       {0, 1, 2, 3}},
      {"the least served client first", {tile_of(1, 1, 2, 4, 900), tile_of(2, 1, 2, 4, 300)}, {1, 0}},
      {"FFN ranks are not weighed", {peer, tile_of(2, 1, 2, 4, 0)}, {0}},
  };
  std::vector<uint32_t> picked;
  for (const auto& item : cases) {
    FfnScheduler::next(item.waiting, {}, served, picked);
    EXPECT_EQ(picked, item.picked) << item.rule;
  }
}

// Calls of 50 ms: a tile that has seen one of them is not old, or all would be.
TEST(FfnScheduler, AgeIsCountedInCallsWhereCallsAreLong) {
  const std::vector<QueuedTile> waiting = {tile_of(1, 1, 1, 4, 0, 60), tile_of(2, 1, 2, 8, 0)};
  std::vector<uint32_t> picked;
  FfnScheduler::next(waiting, {}, {1000, 0, 50000, 0, 0}, picked);
  EXPECT_EQ(picked, (std::vector<uint32_t>{1}));
  FfnScheduler::next(waiting, {}, {1000, 0, 1000, 0, 0}, picked);
  EXPECT_EQ(picked, (std::vector<uint32_t>{0}));
}

TEST(FfnScheduler, HoldsAGroupForWhomMergingSavesMoreThanTheWait) {
  SchedulerPolicy policy;
  policy.num_experts = 32;
  policy.top_k = 4;
  ServedTime served;
  served.expert_us = 50;  // a call of all experts takes 1.6 ms
  using std::chrono::microseconds;
  const auto soon = [](LayerIndex layer, uint32_t rows, int in_us) {
    return std::vector<ExpectedTile>{{layer, rows, microseconds(in_us)}};
  };
  const std::vector<QueuedTile> many = {tile_of(1, 1, 2, 64, 0)};
  EXPECT_EQ(FfnScheduler::hold(many, soon(2, 4, 100), policy, served), microseconds(100));
  EXPECT_EQ(FfnScheduler::hold(many, soon(2, 4, 0), policy, served), microseconds(1));
  EXPECT_EQ(FfnScheduler::hold(many, soon(2, 4, 600), policy, served), Duration::zero()) << "not worth it";
  EXPECT_EQ(FfnScheduler::hold(many, soon(3, 4, 100), policy, served), Duration::zero()) << "another layer";
  EXPECT_EQ(FfnScheduler::hold(many, {}, policy, served), Duration::zero());
  EXPECT_EQ(FfnScheduler::hold({}, soon(2, 4, 100), policy, served), Duration::zero());
  // Rows that read other experts anyway.
  EXPECT_EQ(
      FfnScheduler::hold(std::vector<QueuedTile>{tile_of(1, 1, 2, 1, 0)}, soon(2, 1, 1), policy, served),
      Duration::zero());
  const std::vector<QueuedTile> old = {tile_of(1, 1, 2, 64, 0, 2)};
  EXPECT_EQ(FfnScheduler::hold(old, soon(2, 4, 100), policy, served), Duration::zero()) << "it has waited";
  const std::vector<QueuedTile> two = {tile_of(1, 1, 2, 64, 0), tile_of(2, 1, 3, 4, 0)};
  EXPECT_EQ(FfnScheduler::hold(two, soon(2, 4, 100), policy, served), Duration::zero())
      << "there is other work";
  QueuedTile prompt = tile(2, kPrefill, 64);
  EXPECT_EQ(FfnScheduler::hold(std::vector<QueuedTile>{prompt}, soon(2, 4, 100), policy, served),
            Duration::zero());
  policy.max_hold = Duration::zero();
  EXPECT_EQ(FfnScheduler::hold(many, soon(2, 4, 100), policy, served), Duration::zero());
}

TEST(FfnScheduler, OldestAndFifoAreForComparison) {
  SchedulerPolicy fifo;
  fifo.order = GroupOrder::oldest;
  std::vector<uint32_t> picked;
  const std::vector<QueuedTile> waiting = {tile(2, kDecode, 50, 3), tile(1, kPrefill, 64, 9),
                                           tile(1, kDecode, 1, 8), tile(1, kPrefill, 64, 1),
                                           tile(2, kDecode, 50, 5)};
  FfnScheduler::next(waiting, fifo, {100, 100}, picked);
  EXPECT_EQ(picked, (std::vector<uint32_t>{1, 3}));  // older than any decode tile, whatever the shares
  FfnScheduler::next(std::vector<QueuedTile>{waiting[0], waiting[2]}, fifo, {}, picked);
  EXPECT_EQ(picked, (std::vector<uint32_t>{1}));  // one row before fifty: that is what grouping mends
  EXPECT_FALSE(FfnScheduler::preempts(waiting, fifo, {100, 100}));
  fifo.order = GroupOrder::fifo;
  FfnScheduler::next(waiting, fifo, {100, 100}, picked);
  EXPECT_EQ(picked, (std::vector<uint32_t>{1}));  // alone, though another one of its layer waits
  EXPECT_FALSE(FfnScheduler::preempts(waiting, fifo, {100, 100}));
}

TEST(FfnScheduler, DecodePreemptsPrefillThatHasHadItsShare) {
  const std::vector<QueuedTile> prefill = {tile(1, kPrefill, 64), tile(1, kProfile, 64)};
  const std::vector<QueuedTile> both = {tile(1, kPrefill, 64), tile(2, kDecode, 1)};
  EXPECT_TRUE(FfnScheduler::preempts(both, {}, {80, 20}));
  EXPECT_FALSE(FfnScheduler::preempts(both, {}, {81, 19}));
  EXPECT_TRUE(FfnScheduler::preempts(std::vector<QueuedTile>{tile(2, kDraft, 1)}, {}, {0, 1}));
  EXPECT_FALSE(FfnScheduler::preempts(prefill, {}, {0, 100}));
  EXPECT_FALSE(FfnScheduler::preempts({}, {}, {0, 100}));
}

TEST(FfnScheduler, GroupsHaveARowLimit) {
  const std::vector<QueuedTile> decode(20, tile(1, kDecode, 64));
  std::vector<uint32_t> picked;
  FfnScheduler::next(decode, {}, {}, picked);
  EXPECT_EQ(picked.size(), 8u);  // 512 rows
  const std::vector<QueuedTile> prefill(20, tile(1, kPrefill, 64));
  FfnScheduler::next(prefill, {}, {}, picked);
  EXPECT_EQ(picked.size(), 4u);  // 256 rows
  SchedulerPolicy tiny;
  tiny.max_prefill_rows = 1;
  FfnScheduler::next(prefill, tiny, {}, picked);
  EXPECT_EQ(picked.size(), 1u);  // never nothing
}

// Whatever the load, prefill gets about its share when it always waits beside decode.
TEST(FfnScheduler, PrefillKeepsItsShare) {
  const std::vector<QueuedTile> both = {tile(1, kDecode, 8), tile(1, kPrefill, 64)};
  ServedTime served;
  double decode = 0, prefill = 0;
  std::vector<uint32_t> picked;
  for (int i = 0; i < 3000; ++i) {
    FfnScheduler::next(both, {}, served, picked);
    const bool is_prefill_turn = picked.front() == 1;
    const double cost = is_prefill_turn ? 5000 : 400;
    served.add(is_prefill_turn, cost);
    (is_prefill_turn ? prefill : decode) += cost;
  }
  EXPECT_NEAR(prefill / (prefill + decode), SchedulerPolicy{}.prefill_share, 0.03);
}

// Every tile is served in the end, and no tile twice, for any arrivals.
TEST(FfnScheduler, NothingIsForgotten) {
  std::vector<QueuedTile> waiting;
  for (uint32_t i = 0; i < 300; ++i) {
    waiting.push_back(tile(static_cast<LayerIndex>(i * 7 % 11), static_cast<RowClass>(i % 4), i % 64 + 1,
                           static_cast<int>(i % 30), i % 5));
  }
  std::vector<uint32_t> picked;
  ServedTime served;
  size_t left = waiting.size();
  while (!waiting.empty()) {
    FfnScheduler::next(waiting, {}, served, picked);
    ASSERT_FALSE(picked.empty());
    std::ranges::sort(picked, std::greater<>());
    ASSERT_EQ(std::ranges::adjacent_find(picked), picked.end());
    for (const uint32_t index : picked) {
      ASSERT_EQ(waiting[index].layer, waiting[picked.front()].layer);
      ASSERT_EQ(is_prefill(waiting[index].row_class), is_prefill(waiting[picked.front()].row_class));
    }
    for (const uint32_t index : picked) waiting.erase(waiting.begin() + index);
    left -= picked.size();
    ASSERT_EQ(left, waiting.size());
  }
}

}  // namespace
}  // namespace tandem
