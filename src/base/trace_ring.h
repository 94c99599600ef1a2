// TraceRing: what the lanes of an attention rank did and when, as events of one size in a ring. Off unless
// somebody asks: whoever may be asked holds a pointer, and looks at a null pointer. On, an event costs a look
// at the clock and 64 bytes; when the ring is full the oldest goes, and is counted.
//
// One thread writes: the lane executor's. `name` is called before lanes run, `start` once; `events` and
// everything else only when the writer has stopped. Instants are those of this process alone (base/clock.h);
// of the far side there are durations only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"

namespace tandem {

// Of operations that belong to no layer: embedding, head.
inline constexpr uint16_t kNoTraceLayer = UINT16_MAX;
// TraceEvent::rank of an exchange: computed in this process; completed by nobody (it failed).
inline constexpr uint16_t kTraceLocal = UINT16_MAX, kTraceNobody = UINT16_MAX - 1;

enum class TraceKind : uint8_t {
  operation,  // of a lane's step: `name`, `layer`
  reply,      // of one of several ranks that a request went to; the exchange follows when all have answered
  exchange,   // with the experts: submitted at begin, seen by the lane's executor at end
  step,       // of a lane, or its head run again; `rank` is 1 when it was cancelled or failed
  loop,       // of the engine around its lanes: inbox, planning, sampling; operations lie inside
  sleep,      // of the engine's thread
};

struct TraceEvent {
  int64_t begin_ns = 0, end_ns = 0;  // of the steady clock
  int64_t arrived_ns = 0;            // exchange, reply: when the (last) answer was here
  // exchange, reply: what the rank that answered (last) said of it.
  uint32_t queue_us = 0, compute_us = 0, exchange_us = 0, residence_us = 0;
  uint32_t step = 0;
  uint32_t rows = 0;  // of a step
  uint32_t name = 0;  // of an operation
  uint16_t layer = kNoTraceLayer;
  uint16_t lane = 0;
  uint16_t rank = 0;  // exchange, reply: the FFN rank (that answered last)
  TraceKind kind = TraceKind::operation;
  uint8_t row_class = 0;  // RowClass of a step
};
static_assert(sizeof(TraceEvent) == 64, "an event is a cache line");

inline int64_t trace_time(Instant at) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(at.time_since_epoch()).count();
}

class TraceRing {
 public:
  // Memory is taken as events come, up to `capacity` of them. At least 1.
  explicit TraceRing(size_t capacity);

  // The number of a name; the same name has the same number. Allocates.
  uint32_t name(std::string_view text);
  const std::vector<std::string>& names() const { return names_; }

  // Events are recorded from now on; before, `add` is not called.
  void start();
  bool on() const { return on_; }

  void add(const TraceEvent& event) {
    if (events_.size() < capacity_) {
      events_.push_back(event);
      return;
    }
    TraceEvent& oldest = events_[next_];
    if (oldest.end_ns > dropped_until_ns_) dropped_until_ns_ = oldest.end_ns;
    ++dropped_;
    oldest = event;
    if (++next_ == capacity_) next_ = 0;
  }

  // In the order in which they were added, which is that of their end.
  std::vector<TraceEvent> events() const;
  uint64_t dropped() const { return dropped_; }
  // From here on nothing is missing.
  int64_t dropped_until_ns() const { return dropped_until_ns_; }
  // Of `start`: steady clock, and the host's wall clock, which only places ranks beside each other.
  int64_t started_ns() const { return started_ns_; }
  int64_t started_wall_ns() const { return started_wall_ns_; }

 private:
  const size_t capacity_;
  bool on_ = false;
  std::vector<TraceEvent> events_;
  size_t next_ = 0;  // the oldest, once the ring is full
  uint64_t dropped_ = 0;
  int64_t dropped_until_ns_ = INT64_MIN;
  int64_t started_ns_ = 0, started_wall_ns_ = 0;
  std::vector<std::string> names_;
};

}  // namespace tandem
