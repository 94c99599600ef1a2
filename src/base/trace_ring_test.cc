// TraceRing: order and names, what becomes of the oldest events when the ring is full, windows of it, and
// readers while the writer writes.
#include "base/trace_ring.h"

#include <gtest/gtest.h>

#include <stop_token>
#include <thread>

namespace tandem {
namespace {

TraceEvent event(int64_t begin, int64_t end) {
  TraceEvent made;
  made.begin_ns = begin;
  made.end_ns = end;
  return made;
}

std::vector<int64_t> begins(const std::vector<TraceEvent>& events) {
  std::vector<int64_t> out;
  for (const TraceEvent& each : events) out.push_back(each.begin_ns);
  return out;
}

TEST(TraceRingTest, KeepsTheOrderOfWhatFits) {
  TraceRing ring(4);
  EXPECT_TRUE(ring.events().empty());
  for (int64_t i = 0; i < 3; ++i) ring.add(event(i, i + 1));
  EXPECT_EQ(begins(ring.events()), (std::vector<int64_t>{0, 1, 2}));
  EXPECT_EQ(ring.dropped(), 0u);
  EXPECT_EQ(ring.window().dropped, 0u);
}

TEST(TraceRingTest, TheOldestGoesIsCountedAndSaysFromWhenOnNothingIsMissing) {
  TraceRing ring(4);
  for (int64_t i = 0; i < 11; ++i) ring.add(event(10 * i, 10 * i + 5));
  const TraceWindow window = ring.window();
  EXPECT_EQ(begins(window.events), (std::vector<int64_t>{70, 80, 90, 100}));
  EXPECT_EQ(ring.dropped(), 7u);
  EXPECT_EQ(window.dropped, 7u);
  EXPECT_EQ(window.complete_from_ns, 75);
}

TEST(TraceRingTest, AWindowHasWhatHadNotEndedBefore) {
  TraceRing ring(8);
  for (int64_t i = 0; i < 6; ++i) ring.add(event(10 * i, 10 * i + 15));
  TraceWindow window = ring.window(45);
  EXPECT_EQ(begins(window.events), (std::vector<int64_t>{30, 40, 50}));
  EXPECT_EQ(window.complete_from_ns, 45);
  EXPECT_EQ(window.dropped, 0u) << "what came before is not missing";
  EXPECT_EQ(window.base_ns, 30) << "no time of a file is negative";
  EXPECT_EQ(begins(ring.window(45, 4).events), (std::vector<int64_t>{40, 50}));
  window = ring.window(45, 0, 2);
  EXPECT_EQ(begins(window.events), (std::vector<int64_t>{40, 50}));
  EXPECT_EQ(window.dropped, 4u);
  EXPECT_EQ(window.complete_from_ns, 55);
  EXPECT_TRUE(ring.window(1000).events.empty());
}

TEST(TraceRingTest, AWindowThatTheRingCannotHoldSaysSo) {
  TraceRing ring(4);
  for (int64_t i = 0; i < 6; ++i) ring.add(event(10 * i, 10 * i + 5));
  const uint64_t since = ring.written();
  for (int64_t i = 6; i < 12; ++i) ring.add(event(10 * i, 10 * i + 5));
  const TraceWindow window = ring.window(60, since);
  EXPECT_EQ(begins(window.events), (std::vector<int64_t>{80, 90, 100, 110}));
  EXPECT_EQ(window.dropped, 2u) << "of the window, not of the ring's whole life";
}

TEST(TraceRingTest, NamesAreNumberedOnce) {
  TraceRing ring(1);
  EXPECT_EQ(ring.name("embedding"), 0u);
  EXPECT_EQ(ring.name("head"), 1u);
  EXPECT_EQ(ring.name("embedding"), 0u);
  EXPECT_EQ(ring.names(), (std::vector<std::string>{"embedding", "head"}));
}

TEST(TraceRingTest, IsOnAtTheWritersTurnAfterSomebodyAsks) {
  TraceRing ring(1);
  EXPECT_FALSE(ring.turn());
  ring.end();
  EXPECT_FALSE(ring.turn()) << "nobody had asked";
  ring.ask();
  EXPECT_FALSE(ring.on());
  EXPECT_TRUE(ring.turn());
  const int64_t first = ring.started_ns();
  EXPECT_LE(first, trace_time(now()));
  ring.ask();
  EXPECT_TRUE(ring.turn());
  EXPECT_EQ(ring.started_ns(), first) << "it was on";
  while (trace_time(now()) == first) {
  }
  ring.end();
  ring.ask();
  EXPECT_TRUE(ring.turn());
  EXPECT_GT(ring.started_ns(), first) << "ended and begun between two turns: anew";
  ring.end();
  EXPECT_FALSE(ring.turn());
}

// Whatever the writer overwrites meanwhile, a reader has whole events, one after another.
TEST(TraceRingTest, ReadersSeeWholeEventsWhileTheWriterGoesOn) {
  TraceRing ring(64);
  // Ends with the test, however that ends.
  const std::jthread writer([&](const std::stop_token& stop) {
    for (int64_t i = 0; !stop.stop_requested(); ++i) {
      TraceEvent made = event(i, i);
      made.arrived_ns = i;
      made.queue_us = made.compute_us = made.exchange_us = made.residence_us = static_cast<uint32_t>(i);
      made.step = made.rows = made.name = static_cast<uint32_t>(i);
      made.layer = made.lane = made.rank = static_cast<uint16_t>(i);
      ring.add(made);
    }
  });
  while (ring.written() < 64) std::this_thread::yield();
  size_t seen = 0;
  for (int round = 0; round < 2000; ++round) {
    const TraceWindow window = ring.window();
    for (size_t i = 0; i < window.events.size(); ++i) {
      const TraceEvent& each = window.events[i];
      ASSERT_EQ(each.begin_ns, window.events.front().begin_ns + static_cast<int64_t>(i));
      ASSERT_EQ(each.end_ns, each.begin_ns);
      ASSERT_EQ(each.arrived_ns, each.begin_ns);
      ASSERT_EQ(each.queue_us, static_cast<uint32_t>(each.begin_ns));
      ASSERT_EQ(each.residence_us, each.queue_us);
      ASSERT_EQ(each.name, each.queue_us);
      ASSERT_EQ(each.rank, static_cast<uint16_t>(each.begin_ns));
    }
    seen += window.events.size();
  }
  EXPECT_GT(seen, 0u);
}

}  // namespace
}  // namespace tandem
