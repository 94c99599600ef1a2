#include "attention/lane_choice.h"

#include <gtest/gtest.h>

namespace tandem {
namespace {

TEST(LaneChoice, Table) {
  struct Case {
    const char* rule;
    CostLine attention, experts;
    double rows;
    uint32_t most, current, chosen;
  };
  const CostLine reads{1e-3, 0}, computes{0, 1e-4}, nothing{0, 0}, half{5e-4, 5e-5};
  const Case cases[] = {
      {"both read weights: each lane pays them again", reads, reads, 32, 8, 1, 1},
      {"... and several lanes go back to one", reads, reads, 32, 8, 4, 1},
      {"both compute-bound: the more lanes, the better they overlap", computes, computes, 64, 8, 1, 8},
      {"at most as many as allowed", computes, computes, 64, 2, 1, 2},
      {"at most as many as rows", computes, computes, 2, 8, 1, 2},
      {"no rows", computes, computes, 0, 8, 3, 1},
      {"the experts take no time: nothing to overlap", computes, nothing, 64, 8, 1, 1},
      {"attention takes no time: nothing to overlap", nothing, computes, 64, 8, 1, 1},
      // 1: 2 * (5e-4 + 5e-5 * 64) = 7.4 ms; 2: 3 * 2.1 = 6.3 ms; 3: 4 * 1.57 = 6.3 ms; 4: 5 * 1.3 = 6.5 ms
      {"half fixed: two lanes", half, half, 64, 2, 1, 2},
      // 1: 2 * (5e-4 + 5e-5 * 16) = 2.6 ms; 2: 3 * 0.9 = 2.7 ms
      {"half fixed and few rows: one lane", half, half, 16, 2, 1, 1},
      // 1: 2 * (5e-4 + 5e-5 * 24) = 3.4 ms; 2: 3 * 1.1 = 3.3 ms: less than a tenth
      {"a small gain changes nothing", half, half, 24, 2, 1, 1},
      {"... in either direction", half, half, 24, 2, 2, 2},
  };
  for (const Case& item : cases) {
    EXPECT_EQ(choose_lanes(item.attention, item.experts, item.rows, item.most, item.current), item.chosen)
        << item.rule;
  }
}

TEST(LaneChoice, TheMeterFindsTheLine) {
  CostMeter meter;
  for (int i = 0; i < 200; ++i) meter.add(8 + i % 50, 2e-3 + 1e-4 * (8 + i % 50));
  EXPECT_NEAR(meter.line().fixed, 2e-3, 1e-9);
  EXPECT_NEAR(meter.line().per_row, 1e-4, 1e-9);
}

TEST(LaneChoice, EqualRowsTellNoSlopeAndNoiseGivesNoNegativeCost) {
  CostMeter same;
  for (int i = 0; i < 50; ++i) same.add(32, i % 2 == 0 ? 1e-3 : 3e-3);
  EXPECT_NEAR(same.line().fixed, 2e-3, 1e-4);
  EXPECT_EQ(same.line().per_row, 0);
  CostMeter falling, steep;
  for (int i = 1; i < 100; ++i) {
    falling.add(i, 1.0 / i);
    steep.add(i, i * i);
  }
  EXPECT_EQ(falling.line().per_row, 0);
  EXPECT_GE(steep.line().fixed, 0);
  EXPECT_EQ(CostMeter().line().at(10), 0);
}

TEST(LaneChoice, ItFollowsAChange) {
  CostMeter meter;
  for (int i = 0; i < 500; ++i) meter.add(1 + i % 64, 1e-3);
  for (int i = 0; i < 2000; ++i) meter.add(1 + i % 64, 1e-4 * (1 + i % 64));
  EXPECT_NEAR(meter.line().per_row, 1e-4, 1e-5);
}

}  // namespace
}  // namespace tandem
