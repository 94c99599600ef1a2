#include "cli/rank_counters.h"

#include <gtest/gtest.h>

namespace tandem {
namespace {

RankCounters some() {
  return {"ffn", 2, {}, 10, 0.5, 4, 0.25};
}

TEST(RankCounters, SurviveTheirJson) {
  const auto parsed = parse_counters(counters_json(some()));
  ASSERT_TRUE(parsed) << parsed.error().message;
  EXPECT_EQ(parsed->name(), "ffn 2");
  EXPECT_EQ(parsed->collects, 10u);
  EXPECT_EQ(parsed->wait_seconds, 0.5);
  EXPECT_EQ(parsed->router_calls, 4u);
  EXPECT_EQ(parsed->router_seconds, 0.25);
  EXPECT_FALSE(parse_counters("{\"role\": \"ffn\"}"));
  EXPECT_FALSE(parse_counters("ready"));
}

TEST(RankCounters, ADifferenceIsWhatHappenedBetween) {
  RankCounters later = some();
  later.collects += 5;
  later.wait_seconds += 1.5;
  later.router_calls += 1;
  const RankCounters between = later - some();
  EXPECT_EQ(between.collects, 5u);
  EXPECT_EQ(between.wait_seconds, 1.5);
  EXPECT_EQ(between.router_calls, 1u);
  EXPECT_EQ(between.router_seconds, 0.0);
  EXPECT_TRUE(between.missing.empty());
}

TEST(RankCounters, ARankWithoutDataSaysWhy) {
  RankCounters silent = some();
  silent.missing = "the process has ended";
  EXPECT_EQ((silent - some()).missing, "the process has ended");
  EXPECT_EQ((some() - silent).missing, "the process has ended");
  EXPECT_EQ(parse_counters(counters_json(silent))->missing, "the process has ended");
  RankCounters again = some();
  again.collects = 3;
  EXPECT_EQ((again - some()).missing, "it started again meanwhile");
}

TEST(RankCounters, ComeFromEitherSidesStats) {
  EngineStats engine;
  engine.ffn_submits = 3;
  engine.ffn_wait_seconds = 0.25;
  engine.router_calls = 2;
  EXPECT_EQ(counters_of("attention", 1, engine).collects, 3u);
  EXPECT_EQ(counters_of("attention", 1, engine).name(), "attention 1");
  FfnStats ffn;
  ffn.groups = 7;
  ffn.wait_us = 1500000;
  ffn.router_ns = 2000000000;
  EXPECT_EQ(counters_of(0, ffn).collects, 7u);
  EXPECT_DOUBLE_EQ(counters_of(0, ffn).wait_seconds, 1.5);
  EXPECT_DOUBLE_EQ(counters_of(0, ffn).router_seconds, 2.0);
}

}  // namespace
}  // namespace tandem
