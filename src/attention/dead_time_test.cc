// Dead time from events made by hand: what each part is, that the parts of every view add up to its whole,
// and that nothing depends on what lanes, ranks and cancels do to each other.
#include "attention/dead_time.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace tandem {
namespace {

constexpr uint16_t kDecode = 0;

// Events as the engine's thread would record them; times in microseconds.
struct Tape {
  std::vector<TraceEvent> events;
  static constexpr int64_t kMicro = 1000;

  void operation(uint16_t lane, uint16_t layer, int64_t begin, int64_t end) {
    add({.begin_ns = begin, .end_ns = end, .layer = layer, .lane = lane, .kind = TraceKind::operation});
  }
  struct Times {
    uint32_t queue, compute, exchange, residence;
  };
  void answer(TraceKind kind, uint16_t lane, uint16_t layer, uint16_t rank, int64_t submitted,
              int64_t arrived, int64_t seen, Times times) {
    add({.begin_ns = submitted,
         .end_ns = seen,
         .arrived_ns = arrived * kMicro,
         .queue_us = times.queue,
         .compute_us = times.compute,
         .exchange_us = times.exchange,
         .residence_us = times.residence,
         .layer = layer,
         .lane = lane,
         .rank = rank,
         .kind = kind});
  }
  void exchange(uint16_t lane, uint16_t layer, uint16_t rank, int64_t submitted, int64_t arrived,
                int64_t seen, Times times) {
    answer(TraceKind::exchange, lane, layer, rank, submitted, arrived, seen, times);
  }
  void step(uint16_t lane, int64_t begin, int64_t end, bool cancelled = false) {
    add({.begin_ns = begin,
         .end_ns = end,
         .rows = 3,
         .lane = lane,
         .rank = static_cast<uint16_t>(cancelled ? 1 : 0),
         .kind = TraceKind::step,
         .row_class = kDecode});
  }
  void loop(int64_t begin, int64_t end) { add({.begin_ns = begin, .end_ns = end, .kind = TraceKind::loop}); }
  void sleep(int64_t begin, int64_t end) {
    add({.begin_ns = begin, .end_ns = end, .kind = TraceKind::sleep});
  }

  DeadTime account() const { return account_dead_time(events); }

 private:
  void add(TraceEvent event) {
    event.begin_ns *= kMicro;
    event.end_ns *= kMicro;
    events.push_back(event);
  }
};

int64_t us(int64_t nanoseconds) {
  EXPECT_EQ(nanoseconds % 1000, 0);
  return nanoseconds / 1000;
}

// Every identity that must hold whatever the events were.
void expect_sums(const DeadTime& time) {
  EXPECT_EQ(time.rank.total(), time.wall_ns());
  for (const LaneTime& lane : time.lanes) {
    EXPECT_EQ(lane.parts.total(), time.wall_ns()) << "lane " << lane.lane;
    TimeParts layers;
    for (const LayerTime& layer : time.layers) {
      if (layer.lane == lane.lane) layers.add(layer.parts);
    }
    EXPECT_EQ(layers.total() + lane.parts.idle, time.wall_ns()) << "layers of lane " << lane.lane;
    EXPECT_EQ(layers.attention, lane.parts.attention);
    EXPECT_EQ(layers.experts, lane.parts.experts);
    EXPECT_EQ(layers.wire, lane.parts.wire);
  }
}

const LaneTime& lane_of(const DeadTime& time, uint16_t lane) {
  for (const LaneTime& each : time.lanes) {
    if (each.lane == lane) return each;
  }
  ADD_FAILURE() << "no lane " << lane;
  return time.lanes.front();
}
TimeParts layer_of(const DeadTime& time, uint16_t lane, uint16_t layer) {
  for (const LayerTime& each : time.layers) {
    if (each.lane == lane && each.layer == layer) return each.parts;
  }
  ADD_FAILURE() << "no layer " << layer;
  return {};
}

TEST(DeadTime, OneLaneOneRankSaysWhereEachMicrosecondWent) {
  Tape tape;
  tape.operation(0, 4, 10, 30);
  tape.loop(0, 35);
  tape.sleep(35, 140);  // woken 10 after the answer was there
  // 100 of round trip: 60 of them in the FFN rank, 20 of the wire each way. Submitted within the operation.
  tape.exchange(0, 4, 0, 25, 125 + 5, 142, {10, 40, 10, 60});
  tape.operation(0, 4, 145, 165);
  tape.operation(0, kNoTraceLayer, 165, 170);
  tape.step(0, 5, 171);
  tape.loop(140, 200);
  const DeadTime time = tape.account();
  expect_sums(time);
  EXPECT_EQ(us(time.wall_ns()), 166);
  const TimeParts parts = time.rank;
  EXPECT_EQ(us(parts.attention), 45);
  // The round trip is [25, 130): wire until 47.5, queue until 57.5, experts until 97.5, exchange until 107.5,
  // wire. What lies before 30 was attention's.
  EXPECT_EQ(us(parts.experts), 40);
  EXPECT_EQ(us(parts.queue), 10);
  EXPECT_EQ(us(parts.exchange), 10);
  EXPECT_EQ(us(parts.wire), 45 - 5);
  EXPECT_EQ(us(parts.bubble), 10) << "asleep with the answer there";
  EXPECT_EQ(us(parts.loop), 5 + 5 + 1);
  EXPECT_EQ(parts.idle + parts.other_lanes + parts.unaccounted, 0);
  // A lane that is alone has nothing else.
  const TimeParts lane = lane_of(time, 0).parts;
  EXPECT_EQ(lane.attention, parts.attention);
  EXPECT_EQ(lane.experts, parts.experts);
  EXPECT_EQ(lane.bubble, parts.bubble);
  EXPECT_EQ(us(layer_of(time, 0, 4).experts), 40);
  EXPECT_EQ(us(layer_of(time, 0, kNoTraceLayer).attention), 5);
  ASSERT_EQ(time.answers.size(), 1u);
  EXPECT_EQ(us(time.answers[0].parts.wire), 45) << "all of it, overlapped or not";
  EXPECT_EQ(us(time.answers[0].parts.total()), 105);
}

TEST(DeadTime, WhatAttentionComputesMeanwhileIsNotWaitedFor) {
  Tape tape;
  tape.operation(0, 1, 0, 10);
  tape.operation(0, 1, 10,
                 60);  // shared experts beside the exchange [5, 105): residence 80, wire 10 each way
  tape.exchange(0, 1, 0, 5, 105, 105, {0, 80, 0, 80});
  tape.operation(0, 1, 105, 110);
  tape.loop(0, 110);
  tape.step(0, 0, 110);
  const DeadTime time = tape.account();
  expect_sums(time);
  EXPECT_EQ(us(time.rank.attention), 65);
  EXPECT_EQ(us(time.rank.experts), 95 - 60) << "experts computed until 95";
  EXPECT_EQ(us(time.rank.wire), 10);
  EXPECT_EQ(us(time.answers[0].parts.experts), 80);
}

TEST(DeadTime, OfSeveralRanksTheOneThatAnsweredLastIsWaitedForAndTheOthersHaveABubble) {
  Tape tape;
  tape.operation(0, 2, 0, 10);
  tape.answer(TraceKind::reply, 0, 2, 0, 50, 50, 52, {0, 20, 0, 20});
  tape.answer(TraceKind::reply, 0, 2, 1, 110, 110, 112, {30, 50, 0, 80});
  tape.exchange(0, 2, 1, 10, 110, 113, {30, 50, 0, 80});
  tape.operation(0, 2, 113, 120);
  tape.loop(0, 120);
  tape.step(0, 0, 120);
  const DeadTime time = tape.account();
  expect_sums(time);
  EXPECT_EQ(us(time.rank.experts), 50);
  EXPECT_EQ(us(time.rank.queue), 30);
  EXPECT_EQ(us(time.rank.wire), 20);
  EXPECT_EQ(us(time.rank.loop), 3);
  ASSERT_EQ(time.answers.size(), 2u);
  const AnswerTime &fast = time.answers[0], &slow = time.answers[1];
  EXPECT_EQ(us(fast.parts.experts), 20);
  EXPECT_EQ(us(fast.parts.wire), 20);
  EXPECT_EQ(us(fast.parts.bubble), 60);
  EXPECT_EQ(us(slow.parts.bubble), 0);
  EXPECT_EQ(fast.parts.total(), slow.parts.total()) << "both, until the slower one had answered";
  EXPECT_EQ(fast.last, 0u);
  EXPECT_EQ(slow.last, 1u);
}

TEST(DeadTime, LanesThatOverlapEachHaveTheirOwnWall) {
  Tape tape;
  tape.operation(0, 1, 0, 20);   // lane 0 submits at 20, answered at 60
  tape.operation(1, 1, 20, 80);  // lane 1 has the thread until 80, submits; answered at 120
  tape.exchange(0, 1, 0, 20, 60, 80, {0, 30, 0, 30});
  tape.operation(0, 1, 80, 90);
  tape.step(0, 0, 90);
  tape.loop(0, 95);
  tape.sleep(95, 120);
  tape.exchange(1, 1, 0, 80, 120, 121, {20, 10, 0, 30});
  tape.operation(1, 1, 122, 130);
  tape.step(1, 0, 130);
  tape.loop(120, 130);
  const DeadTime time = tape.account();
  expect_sums(time);
  const TimeParts first = lane_of(time, 0).parts, second = lane_of(time, 1).parts;
  EXPECT_EQ(us(first.attention), 30);
  EXPECT_EQ(us(first.experts), 30);
  EXPECT_EQ(us(first.wire), 10);
  EXPECT_EQ(us(first.other_lanes), 20) << "its answer was there at 60";
  EXPECT_EQ(us(first.idle), 40);
  EXPECT_EQ(us(second.other_lanes), 20);
  EXPECT_EQ(us(second.attention), 68);
  EXPECT_EQ(us(second.queue), 20);
  EXPECT_EQ(us(second.experts), 10);
  EXPECT_EQ(us(second.loop), 2);
  // The thread computed while lane 0's experts did: only what is left of lane 1's wait, behind 90, shows.
  EXPECT_EQ(us(time.rank.attention), 98);
  EXPECT_EQ(us(time.rank.queue), 15);
  EXPECT_EQ(us(time.rank.experts), 10);
  EXPECT_EQ(us(time.rank.wire), 5);
  EXPECT_EQ(us(time.rank.loop), 2);
  EXPECT_EQ(time.rank.other_lanes + time.rank.idle + time.rank.unaccounted, 0);
}

TEST(DeadTime, WhenSeveralLanesWaitTheThreadWaitsForTheFirstAnswer) {
  Tape tape;
  tape.operation(0, 1, 0, 10);
  tape.operation(1, 1, 10, 20);
  tape.loop(0, 20);
  tape.sleep(20, 60);
  tape.exchange(1, 1, 0, 20, 60, 60, {0, 40, 0, 40});
  tape.exchange(0, 1, 0, 10, 100, 101, {0, 0, 90, 90});
  tape.operation(1, 1, 60, 62);
  tape.step(1, 10, 62);
  tape.operation(0, 1, 101, 103);
  tape.step(0, 0, 103);
  tape.loop(60, 103);
  const DeadTime time = tape.account();
  expect_sums(time);
  EXPECT_EQ(us(time.rank.experts), 40) << "until 60 lane 1's, which came first";
  EXPECT_EQ(us(time.rank.exchange), 38);
  EXPECT_EQ(us(lane_of(time, 0).parts.exchange), 90);
}

TEST(DeadTime, ExpertsOfThisProcessComputeWithinTheSubmit) {
  Tape tape;
  tape.operation(0, 3, 0, 100);
  tape.exchange(0, 3, kTraceLocal, 10, 95, 101, {0, 85, 0, 85});
  tape.operation(0, 3, 101, 103);
  tape.loop(0, 103);
  tape.step(0, 0, 103);
  const DeadTime time = tape.account();
  expect_sums(time);
  EXPECT_EQ(us(time.rank.experts), 85);
  EXPECT_EQ(us(time.rank.attention), 17);
  EXPECT_EQ(us(time.rank.loop), 1);
  EXPECT_EQ(time.rank.wire + time.rank.queue + time.rank.bubble, 0);
  EXPECT_EQ(time.answers.at(0).rank, kTraceLocal);
}

TEST(DeadTime, AnswersThatNeverCameAreBubblesAndThoseOfCancelledRequestsAreNobodys) {
  Tape tape;
  tape.operation(0, 1, 0, 10);
  tape.answer(TraceKind::reply, 0, 1, 0, 20, 20, 21, {0, 5, 0, 5});  // the other rank has not answered
  tape.loop(0, 10);
  tape.sleep(10, 50);
  tape.step(0, 0, 51, /*cancelled=*/true);
  tape.loop(50, 60);
  tape.operation(0, 1, 60, 70);  // the next step's request fails
  tape.sleep(70, 90);
  tape.exchange(0, 1, kTraceNobody, 70, 90, 90, {0, 0, 0, 0});
  tape.step(0, 60, 95, /*cancelled=*/true);
  tape.loop(90, 95);
  const DeadTime time = tape.account();
  expect_sums(time);
  EXPECT_EQ(us(time.rank.bubble), 40 + 20);
  EXPECT_EQ(us(time.rank.attention), 20);
  EXPECT_EQ(time.rank.experts + time.rank.wire + time.rank.queue, 0);
  EXPECT_TRUE(time.answers.empty());
  EXPECT_EQ(time.cancelled_steps, 2u);
  EXPECT_EQ(time.exchanges, 1u);
  EXPECT_EQ(time.failed_exchanges, 1u);
}

TEST(DeadTime, AnswersThatClaimMoreThanTheirRoundTripAreCutDownAndCounted) {
  Tape tape;
  tape.operation(0, 1, 0, 10);
  tape.loop(0, 10);
  tape.sleep(10, 60);
  tape.exchange(0, 1, 0, 10, 60, 60, {1000, 45, 1000, 4'000'000'000});
  tape.operation(0, 1, 60, 61);
  tape.step(0, 0, 61);
  tape.loop(60, 61);
  const DeadTime time = tape.account();
  expect_sums(time);
  EXPECT_EQ(us(time.rank.experts), 45);
  EXPECT_EQ(us(time.rank.exchange), 5);
  EXPECT_EQ(time.rank.wire + time.rank.queue, 0);
  EXPECT_EQ(time.corrected, 1u);
}

TEST(DeadTime, TimeWithoutAnEventIsUnknownAndWhatWasDroppedIsOutside) {
  Tape tape;
  tape.operation(0, 1, 0, 10);
  tape.loop(0, 10);
  tape.operation(0, 1, 30, 40);  // nobody says what was from 10 to 30
  tape.loop(30, 40);
  tape.step(0, 0, 40);
  EXPECT_EQ(us(tape.account().rank.unaccounted), 20);
  expect_sums(tape.account());
  const DeadTime rest = account_dead_time(tape.events, 30'000);
  expect_sums(rest);
  EXPECT_EQ(us(rest.wall_ns()), 10);
  EXPECT_EQ(rest.rank.unaccounted, 0);
  EXPECT_EQ(account_dead_time({}).wall_ns(), 0);
}

// A window of a server that runs ends within steps: they are no idle time, and a lane whose first step is
// long is there.
TEST(DeadTime, AStepThatIsNotDoneCountsAsFarAsEventsReach) {
  Tape tape;
  tape.operation(0, 1, 0, 10);
  tape.exchange(0, 1, 0, 10, 50, 52, {0, 40, 0, 40});
  tape.sleep(10, 52);
  tape.operation(0, 2, 52, 60);
  const DeadTime alone = tape.account();
  expect_sums(alone);
  EXPECT_EQ(us(alone.wall_ns()), 60);
  EXPECT_EQ(us(alone.rank.attention), 18);
  EXPECT_EQ(us(alone.rank.experts), 40);
  EXPECT_EQ(us(alone.rank.bubble), 2) << "woken";
  ASSERT_EQ(alone.lanes.size(), 1u);
  EXPECT_EQ(alone.lanes[0].steps, 0u);
  EXPECT_EQ(alone.steps, 0u);

  // Beside a lane whose steps end, and before one that begins.
  tape.step(0, 0, 60);
  tape.operation(1, 1, 60, 70);
  tape.operation(0, 1, 70, 80);
  tape.step(1, 60, 90);
  tape.operation(1, 1, 90, 100);
  tape.step(1, 90, 110);
  const DeadTime time = tape.account();
  expect_sums(time);
  EXPECT_EQ(us(time.wall_ns()), 110);
  EXPECT_EQ(us(lane_of(time, 0).parts.idle), 10) << "between its steps, not in the one that is open";
  EXPECT_EQ(us(lane_of(time, 0).parts.other_lanes), 10);
  EXPECT_EQ(us(lane_of(time, 0).parts.unaccounted), 20);
  EXPECT_EQ(lane_of(time, 0).steps, 1u);
  EXPECT_EQ(time.steps, 3u);
}

// A thread, lanes and ranks that do anything in any order: every view's parts add up to the nanosecond, and
// nothing is unknown.
TEST(DeadTime, AnyTapeAddsUp) {
  for (uint32_t seed = 0; seed < 50; ++seed) {
    std::mt19937 random(seed);
    struct Lane {
      int64_t began = -1, submitted = -1;
      std::vector<TraceEvent> replies;
      int64_t arrived = 0;
    };
    const uint32_t num_lanes = 1 + seed % 4, num_ranks = 1 + seed % 3;
    std::vector<Lane> lanes(num_lanes);
    std::vector<TraceEvent> events;
    int64_t at = 1000, loop_began = at;
    const auto pass = [&] { return at += 1 + static_cast<int64_t>(random() % 5000); };
    for (int i = 0; i < 2000; ++i) {
      const auto index = static_cast<uint16_t>(random() % num_lanes);
      Lane& lane = lanes[index];
      const auto layer = static_cast<uint16_t>(random() % 5);
      if (lane.began < 0) {
        lane.began = at;
      } else if (lane.submitted >= 0 && at >= lane.arrived) {
        TraceEvent done;
        for (const TraceEvent& reply : lane.replies) {
          events.push_back(reply);
          if (reply.arrived_ns == lane.arrived) done = reply;
        }
        done.kind = TraceKind::exchange;
        done.begin_ns = lane.submitted;
        done.end_ns = at;
        if (random() % 20 == 0) done.rank = kTraceNobody;
        events.push_back(done);
        lane.submitted = -1;
      } else if (lane.submitted >= 0 && random() % 3 == 0) {
        events.push_back({.begin_ns = loop_began, .end_ns = at, .kind = TraceKind::loop});
        const int64_t slept = at;
        events.push_back({.begin_ns = slept, .end_ns = pass(), .kind = TraceKind::sleep});
        loop_began = at;
      } else if (random() % 8 == 0) {  // with a request out: cancelled
        events.push_back({.begin_ns = lane.began,
                          .end_ns = at,
                          .lane = index,
                          .rank = static_cast<uint16_t>(lane.submitted >= 0 ? 1 : 0),
                          .kind = TraceKind::step});
        lane = {};
      } else {
        const int64_t began = at;
        events.push_back({.begin_ns = began,
                          .end_ns = pass(),
                          .layer = layer,
                          .lane = index,
                          .kind = TraceKind::operation});
        if (lane.submitted < 0 && random() % 2 == 0) {
          lane.submitted = at;
          lane.arrived = 0;
          lane.replies.clear();
          for (uint16_t rank = 0; rank < num_ranks; ++rank) {
            const int64_t arrived = at + 1 + static_cast<int64_t>(random() % 20000);
            const auto some = [&] { return static_cast<uint32_t>(random() % 8); };
            const uint32_t queue = some(), compute = some(), exchange = some();
            lane.replies.push_back({.begin_ns = arrived,
                                    .end_ns = arrived,
                                    .arrived_ns = arrived,
                                    .queue_us = queue,
                                    .compute_us = compute,
                                    .exchange_us = exchange,
                                    .residence_us = queue + compute + exchange + some(),
                                    .layer = layer,
                                    .lane = index,
                                    .rank = rank,
                                    .kind = TraceKind::reply});
            lane.arrived = std::max(lane.arrived, arrived);
          }
        }
      }
      if (random() % 4 == 0) pass();
    }
    events.push_back({.begin_ns = loop_began, .end_ns = at, .kind = TraceKind::loop});
    // What is still out ends with its step.
    for (uint16_t index = 0; index < num_lanes; ++index) {
      if (lanes[index].began >= 0)
        events.push_back({.begin_ns = lanes[index].began,
                          .end_ns = at,
                          .lane = index,
                          .rank = 1,
                          .kind = TraceKind::step});
    }
    const DeadTime time = account_dead_time(events);
    EXPECT_GT(time.wall_ns(), 0);
    EXPECT_GT(time.exchanges, 10u);
    expect_sums(time);
    EXPECT_EQ(time.rank.unaccounted, 0) << "seed " << seed;
    // The same from the middle on.
    const DeadTime rest = account_dead_time(events, (time.begin_ns + time.end_ns) / 2);
    expect_sums(rest);
    EXPECT_EQ(rest.wall_ns(), time.end_ns - (time.begin_ns + time.end_ns) / 2);
    // Up to the middle, in the middle of steps.
    const DeadTime cut = account_dead_time(std::span(events).first(events.size() / 2));
    EXPECT_GT(cut.wall_ns(), 0);
    expect_sums(cut);
  }
}

}  // namespace
}  // namespace tandem
