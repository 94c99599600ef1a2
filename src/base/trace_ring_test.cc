// TraceRing: order and names, and what becomes of the oldest events when the ring is full.
#include "base/trace_ring.h"

#include <gtest/gtest.h>

namespace tandem {
namespace {

TraceEvent event(int64_t begin, int64_t end) {
  TraceEvent made;
  made.begin_ns = begin;
  made.end_ns = end;
  return made;
}

TEST(TraceRingTest, KeepsTheOrderOfWhatFits) {
  TraceRing ring(4);
  for (int64_t i = 0; i < 3; ++i) ring.add(event(i, i + 1));
  const auto events = ring.events();
  ASSERT_EQ(events.size(), 3u);
  for (int64_t i = 0; i < 3; ++i) EXPECT_EQ(events[static_cast<size_t>(i)].begin_ns, i);
  EXPECT_EQ(ring.dropped(), 0u);
}

TEST(TraceRingTest, TheOldestGoesIsCountedAndSaysFromWhenOnNothingIsMissing) {
  TraceRing ring(4);
  ring.add(event(0, 50));  // recorded late: it ends behind the next ones' ends
  for (int64_t i = 1; i < 11; ++i) ring.add(event(10 * i, 10 * i + 5));
  const auto events = ring.events();
  ASSERT_EQ(events.size(), 4u);
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(events[i].begin_ns, static_cast<int64_t>(70 + 10 * i));
  EXPECT_EQ(ring.dropped(), 7u);
  EXPECT_EQ(ring.dropped_until_ns(), 65);
}

TEST(TraceRingTest, NamesAreNumberedOnce) {
  TraceRing ring(1);
  EXPECT_EQ(ring.name("embedding"), 0u);
  EXPECT_EQ(ring.name("head"), 1u);
  EXPECT_EQ(ring.name("embedding"), 0u);
  EXPECT_EQ(ring.names(), (std::vector<std::string>{"embedding", "head"}));
}

TEST(TraceRingTest, IsOffUntilItIsStarted) {
  TraceRing ring(1);
  EXPECT_FALSE(ring.on());
  ring.start();
  EXPECT_TRUE(ring.on());
  EXPECT_LE(ring.started_ns(), trace_time(now()));
}

}  // namespace
}  // namespace tandem
