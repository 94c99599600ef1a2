#include "cli/bench_statistics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace tandem {
namespace {

TEST(Spread, IsMeanAndSampleDeviation) {
  const std::vector<double> values = {2, 4, 4, 4, 5, 5, 7, 9};
  const Spread spread = spread_of(values);
  EXPECT_EQ(spread.runs, 8u);
  EXPECT_DOUBLE_EQ(spread.mean, 5);
  EXPECT_DOUBLE_EQ(spread.deviation, std::sqrt(32.0 / 7));
  EXPECT_EQ(spread_of({}).runs, 0u);
  EXPECT_EQ(spread_of(std::vector<double>{3}).deviation, 0);
}

TEST(StudentT, AgreesWithItsTable) {
  EXPECT_NEAR(student_t(1), 12.706, 1e-3);
  EXPECT_NEAR(student_t(8), 2.306, 1e-3);
  EXPECT_NEAR(student_t(40), 2.021, 2e-3);
  EXPECT_NEAR(student_t(120), 1.980, 2e-3);
  EXPECT_GT(student_t(30), student_t(31));
}

TEST(Compare, ADifferenceThatTheRunsDoNotShowIsNone) {
  const std::vector<double> one = {100, 102, 98, 101, 99}, other = {101, 103, 99, 102, 100};
  const Comparison comparison = compare(spread_of(one), spread_of(other), true);
  EXPECT_DOUBLE_EQ(comparison.delta, 1);
  // By hand: both deviations are sqrt(2.5), t(8) is 2.306.
  EXPECT_NEAR(comparison.band, 2.306 * std::sqrt(2.5) * std::sqrt(2.0 / 5), 1e-3);
  EXPECT_EQ(comparison.verdict, Verdict::inside);
  EXPECT_EQ(verdict_text(comparison), "inside the band: no measurable change");
}

TEST(Compare, OutsideTheBandTheDirectionOfTheMetricDecides) {
  const std::vector<double> one = {100, 101, 99}, other = {110, 111, 109};
  const Comparison rate = compare(spread_of(one), spread_of(other), true);
  EXPECT_EQ(rate.verdict, Verdict::better);
  EXPECT_EQ(verdict_text(rate), "better by 10.0 %, outside the band");
  const Comparison time = compare(spread_of(one), spread_of(other), false);
  EXPECT_EQ(time.verdict, Verdict::worse);
  EXPECT_EQ(compare(spread_of(other), spread_of(one), false).verdict, Verdict::better);
}

TEST(Compare, OneRunHasNoBand) {
  const Comparison comparison =
      compare(spread_of(std::vector<double>{100}), spread_of(std::vector<double>{200, 210}), true);
  EXPECT_EQ(comparison.verdict, Verdict::no_band);
  EXPECT_NE(verdict_text(comparison).find("two runs or more"), std::string::npos);
}

TEST(Compare, TheBandHoldsEqualArmsInNineteenOfTwentyExperiments) {
  std::mt19937_64 random(1);
  std::normal_distribution<double> normal(50, 3);
  int outside = 0;
  constexpr int kExperiments = 4000;
  for (int i = 0; i < kExperiments; ++i) {
    std::vector<double> one(5), other(5);
    for (double& value : one) value = normal(random);
    for (double& value : other) value = normal(random);
    outside += compare(spread_of(one), spread_of(other), true).verdict == Verdict::inside ? 0 : 1;
  }
  EXPECT_NEAR(static_cast<double>(outside) / kExperiments, 0.05, 0.012);
}

}  // namespace
}  // namespace tandem
