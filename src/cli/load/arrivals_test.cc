#include "cli/load/arrivals.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "cli/load/lengths.h"

namespace tandem {
namespace {

std::vector<double> all(const ArrivalOptions& options) {
  ArrivalSchedule schedule(options);
  std::vector<double> times;
  while (const auto at = schedule.next()) times.push_back(*at);
  return times;
}

struct Gaps {
  double mean = 0, variation = 0;  // deviation over mean
};
Gaps gaps_of(const std::vector<double>& times) {
  Gaps gaps;
  const auto count = static_cast<double>(times.size() - 1);
  gaps.mean = (times.back() - times.front()) / count;
  double squares = 0;
  for (size_t i = 1; i < times.size(); ++i) squares += std::pow(times[i] - times[i - 1] - gaps.mean, 2);
  gaps.variation = std::sqrt(squares / count) / gaps.mean;
  return gaps;
}

TEST(ArrivalSchedule, WithoutARateAllAreDueAtOnce) {
  EXPECT_EQ(all({.count = 3}), (std::vector<double>{0, 0, 0}));
}

TEST(ArrivalSchedule, ConstantGaps) {
  EXPECT_EQ(all({.rate = 4, .is_constant = true, .count = 4}), (std::vector<double>{0, 0.25, 0.5, 0.75}));
  EXPECT_EQ(all({.rate = 4, .is_constant = true, .seconds = 0.6}), (std::vector<double>{0, 0.25, 0.5}));
  EXPECT_EQ(all({.rate = 4, .is_constant = true, .count = 2, .seconds = 0.6}),
            (std::vector<double>{0, 0.25}));
}

// The coefficient of variation of a gamma distribution of shape k is 1 / sqrt(k).
TEST(ArrivalSchedule, BurstinessIsTheShapeOfTheGaps) {
  for (const double shape : {0.25, 1.0, 4.0, 100.0}) {
    const Gaps gaps = gaps_of(all({.rate = 50, .burstiness = shape, .count = 20000, .seed = 7}));
    EXPECT_NEAR(gaps.mean, 1.0 / 50, 1e-12) << shape;  // the schedule as a whole has the rate exactly
    EXPECT_NEAR(gaps.variation, 1 / std::sqrt(shape), 0.05 / std::sqrt(shape)) << shape;
    // By duration nothing is stretched: chance moves the mean.
    EXPECT_NEAR(gaps_of(all({.rate = 50, .burstiness = shape, .seconds = 400, .seed = 7})).mean, 1.0 / 50,
                0.001)
        << shape;
  }
}

TEST(ArrivalSchedule, ASeedGivesItsScheduleAndNoOther) {
  const ArrivalOptions options{.rate = 3, .count = 50, .seed = 1};
  EXPECT_EQ(all(options), all(options));
  ArrivalOptions other = options;
  other.seed = 2;
  EXPECT_NE(all(options), all(other));
}

TEST(ParseRequestRate, TakesInfAndRefusesTheRest) {
  EXPECT_TRUE(std::isinf(parse_request_rate("inf").value()));
  EXPECT_EQ(parse_request_rate("0.5").value(), 0.5);
  for (const char* text : {"0", "-1", "nan", "fast", "1x", ""}) {
    const auto rate = parse_request_rate(text);
    ASSERT_FALSE(rate) << text;
    EXPECT_EQ(rate.error().message, "load.request_rate: '" + std::string(text) +
                                        "' is not a number above 0; use inf to send without a rate");
  }
}

std::vector<uint32_t> draw(const std::string& text, double ratio = 0) {
  const LengthDistribution lengths = LengthDistribution::parse("key", text, ratio).value();
  std::mt19937_64 random(3);
  std::vector<uint32_t> drawn;
  for (int i = 0; i < 20000; ++i) drawn.push_back(lengths.sample(random));
  std::ranges::sort(drawn);
  return drawn;
}

TEST(LengthDistribution, FixedUniformAndLognormal) {
  EXPECT_EQ(draw("128").front(), 128u);
  EXPECT_EQ(draw("128").back(), 128u);
  EXPECT_EQ(draw("3:5").front(), 3u);
  EXPECT_EQ(draw("3:5").back(), 5u);
  EXPECT_EQ(draw("100", 0.1).front(), 90u);
  EXPECT_EQ(draw("100", 0.1).back(), 110u);
  EXPECT_EQ(draw("1", 0.9).front(), 1u);  // never none
  const std::vector<uint32_t> lognormal = draw("lognormal:200:0.5");
  EXPECT_NEAR(lognormal[lognormal.size() / 2], 200, 6);
  // The 84th percentile is a sigma above the median.
  EXPECT_NEAR(lognormal[lognormal.size() * 8413 / 10000], 200 * std::exp(0.5), 12);
}

TEST(LengthDistribution, RefusesByName) {
  for (const char* text :
       {"", "0", "x", "5:3", "1:2:3", "lognormal:0:1", "lognormal:5", "lognormal:5:-1", "99999999"}) {
    const auto lengths = LengthDistribution::parse("load.random_input_len", text);
    ASSERT_FALSE(lengths) << text;
    EXPECT_TRUE(lengths.error().message.starts_with("load.random_input_len: '" + std::string(text) + "' "));
    EXPECT_TRUE(lengths.error().message.ends_with("use 128, 64:256 or lognormal:MEDIAN:SIGMA (tokens)"));
  }
  EXPECT_NE(
      LengthDistribution::parse("k", "1:2", 0.5).error().message.find("load.random_range_ratio is given"),
      std::string::npos);
}

}  // namespace
}  // namespace tandem
