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
      {"an old prompt beats decode", {tile(1, kPrefill, 64, 600), tile(2, kDecode, 1)}, {10, 90}, {0}},
      {"a prompt is not old at the age of decode",
       {tile(1, kPrefill, 64, 100), tile(2, kDecode, 1)},
       {10, 90},
       {1}},
  };
  std::vector<uint32_t> picked = {99};
  for (const Case& item : cases) {
    FfnScheduler::next(item.waiting, {}, item.served, picked);
    EXPECT_EQ(picked, item.picked) << item.rule;
  }
}

TEST(FfnScheduler, FifoTakesTheOldestTilesLayerAndClass) {
  SchedulerPolicy fifo;
  fifo.order = GroupOrder::fifo;
  std::vector<uint32_t> picked;
  const std::vector<QueuedTile> waiting = {tile(2, kDecode, 50, 3), tile(1, kPrefill, 64, 9),
                                           tile(1, kDecode, 1, 8), tile(1, kPrefill, 64, 1),
                                           tile(2, kDecode, 50, 5)};
  FfnScheduler::next(waiting, fifo, {100, 100}, picked);
  EXPECT_EQ(picked, (std::vector<uint32_t>{1, 3}));  // older than any decode tile, whatever the shares
  FfnScheduler::next(std::vector<QueuedTile>{waiting[0], waiting[2]}, fifo, {}, picked);
  EXPECT_EQ(picked, (std::vector<uint32_t>{1}));  // one row before fifty: that is what grouping mends
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
