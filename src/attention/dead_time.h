// DeadTime: where the time of an attention rank went, from the events of a TraceRing. A pure function of
// them. Every instant is this rank's own; of the FFN ranks there are durations alone, so that no clocks are
// compared: what a round trip took beyond the time that the FFN rank says it had the rows is the wire.
//
// Three views, each with parts that add up:
//   rank    the engine's thread, over the whole window: what it did, or what it waited for
//   lanes   each lane over the window: its own operations, what it waited for, when others had the thread
//   answers each layer x lane x FFN rank: its round trips until the slowest rank had answered
// docs/architecture.md (Dead time) says which time counts as what.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/trace_ring.h"

namespace tandem {

// Nanoseconds.
struct TimeParts {
  int64_t attention = 0;    // operations of this rank
  int64_t experts = 0;      // the experts computed, here or on the FFN rank that was waited for
  int64_t queue = 0;        // in that FFN rank: waiting, or otherwise not computing
  int64_t exchange = 0;     // in that FFN rank: waiting for other FFN ranks
  int64_t wire = 0;         // of the round trip, what is not in that FFN rank
  int64_t bubble = 0;       // nobody worked for it; of an answer: until the slowest rank had answered
  int64_t other_lanes = 0;  // of a lane: it could go on, and another lane had the thread
  int64_t loop = 0;         // the engine around its lanes: planning, sampling, looking for replies
  int64_t idle = 0;         // no step
  int64_t unaccounted = 0;  // no event says what it was

  int64_t total() const {
    return attention + experts + queue + exchange + wire + bubble + other_lanes + loop + idle + unaccounted;
  }
  void add(const TimeParts& other);
};

struct LaneTime {
  uint16_t lane = 0;
  uint8_t row_class = 0;         // RowClass of its first step
  uint64_t steps = 0, rows = 0;  // of those that ended
  TimeParts parts;               // the whole window
};

// Of a lane, within its steps. All layers of a lane and its idle time are the lane's parts.
struct LayerTime {
  uint16_t lane = 0;
  uint16_t layer = kNoTraceLayer;
  TimeParts parts;
};

struct AnswerTime {
  uint16_t lane = 0;
  uint16_t layer = kNoTraceLayer;
  uint16_t rank = 0;  // of FFN, or kTraceLocal
  uint64_t answers = 0;
  uint64_t last = 0;  // those that the lane waited for longest
  TimeParts parts;    // from submit to the slowest rank's answer
};

struct DeadTime {
  // From the begin of the first step to the end of the last, or to the last event of one that is not done.
  int64_t begin_ns = 0, end_ns = 0;
  TimeParts rank;
  std::vector<LaneTime> lanes;      // that ran a step, ascending
  std::vector<LayerTime> layers;    // by lane, then layer; operations of no layer last
  std::vector<AnswerTime> answers;  // by lane, layer, rank
  uint64_t steps = 0, cancelled_steps = 0, exchanges = 0;
  uint64_t failed_exchanges = 0;  // that nobody answered well
  uint64_t corrected = 0;         // answers whose durations were longer than their round trip: cut down to it

  int64_t wall_ns() const { return end_ns - begin_ns; }
};

// `events` in the order of TraceRing::events. Nothing before `complete_from_ns` is counted.
DeadTime account_dead_time(std::span<const TraceEvent> events, int64_t complete_from_ns = INT64_MIN);

// Calls back with each exchange that was completed and the answers of the ranks that it went to: the replies
// recorded with it, or the exchange itself where one rank was asked. Replies of a request that was cancelled
// are left out. In order.
using OnExchange = std::function<void(const TraceEvent& exchange, std::span<const TraceEvent> answers)>;
void for_each_exchange(std::span<const TraceEvent> events, const OnExchange& on_exchange);

// A round trip [submitted, arrived] cut into the parts of its answer, in order of time: half of the wire, the
// queue, the experts, the exchange, the other half of the wire. That the halves are equal is a choice.
struct AnswerParts {
  int64_t wire_there = 0, queue = 0, experts = 0, exchange = 0, wire_back = 0;
  bool corrected = false;
};
AnswerParts answer_parts(const TraceEvent& answer, int64_t submitted_ns);

}  // namespace tandem
