// TraceRing: what the lanes of an attention rank, or the calls of an FFN rank, did and when, as events of one
// size in a ring. Off unless somebody asks: whoever may be asked holds a pointer, and looks at a null
// pointer. On, an event costs a look at the clock and 64 bytes; when the ring is full the oldest goes.
//
// One thread writes (the lane executor's; an FFN rank's compute thread): `name` before it begins, then
// `turn`, `on`, `add`. Anybody may ask it to begin and to end, and read what is there meanwhile: the writer
// never waits for a reader, and a reader leaves out what was overwritten under its hands. Instants are those
// of this process alone (base/clock.h); of the far side there are durations only.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
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
  // Of an attention rank:
  operation,  // of a lane's step: `name`, `layer`
  reply,      // of one of several ranks that a request went to; the exchange follows when all have answered
  exchange,   // with the experts: submitted at begin, seen by the lane's executor at end
  step,       // of a lane, or its head run again; `rank` is 1 when it was cancelled or failed
  loop,       // of the engine around its lanes: inbox, planning, sampling; operations lie inside
  sleep,      // of the engine's thread
  // Of an FFN rank:
  call,  // of the experts: `layer`, `rows` of `lane` requests of `rank` clients; `name` is 1 for a replay.
         // One
         // of decode rows may lie inside one of a prompt's
  wait,  // for requests; `rank` is 1 where other FFN ranks owe answers meanwhile
};

struct TraceEvent {
  int64_t begin_ns = 0, end_ns = 0;  // of the steady clock
  int64_t arrived_ns = 0;            // exchange, reply: when the (last) answer was here
  // exchange, reply: what the rank that answered (last) said of it.
  uint32_t queue_us = 0, compute_us = 0, exchange_us = 0, residence_us = 0;
  uint32_t step = 0;
  uint32_t rows = 0;  // of a step, of a call
  uint32_t name = 0;  // of an operation
  uint16_t layer = kNoTraceLayer;
  uint16_t lane = 0;
  uint16_t rank = 0;  // exchange, reply: the FFN rank (that answered last)
  TraceKind kind = TraceKind::operation;
  uint8_t row_class = 0;  // RowClass of a step, of a call
  uint32_t unused = 0;    // padding with a value: events are copied as words
};
static_assert(sizeof(TraceEvent) == 64, "an event is a cache line");

inline int64_t trace_time(Instant at) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(at.time_since_epoch()).count();
}

// Some of what a ring recorded.
struct TraceWindow {
  std::vector<TraceEvent> events;        // in the order of their end
  int64_t complete_from_ns = INT64_MIN;  // from here on nothing is missing
  uint64_t dropped = 0;                  // older events of the window that are gone
  // From where a file counts its times: not behind the first event. Steady clock, and the host's wall clock,
  // which only places ranks beside each other.
  int64_t base_ns = 0, base_wall_ns = 0;
};

class TraceRing {
 public:
  // Memory is taken as events come, up to `capacity` of them. At least 1.
  explicit TraceRing(size_t capacity);

  // The number of a name; the same name has the same number. Allocates.
  uint32_t name(std::string_view text);
  const std::vector<std::string>& names() const { return names_; }

  // ---- any thread ----

  // Recording begins, or ends, at the writer's next turn. One at a time.
  void ask() { asked_.fetch_or(1, std::memory_order_release); }
  void end() { asked_.fetch_add(asked_.load(std::memory_order_relaxed) % 2, std::memory_order_release); }

  // Events written so far; a number to give `window` later.
  uint64_t written() const { return written_.load(std::memory_order_acquire); }
  // Those that were written from number `since` on and had not ended before `from_ns`; of more than `most`,
  // or more than the ring holds, the newest.
  TraceWindow window(int64_t from_ns = INT64_MIN, uint64_t since = 0, size_t most = SIZE_MAX) const;
  std::vector<TraceEvent> events() const { return window().events; }
  // Events that did not fit beside later ones.
  uint64_t dropped() const { return written() - std::min<uint64_t>(written(), capacity_); }
  // When the recording began that is on or was last.
  int64_t started_ns() const { return started_ns_.load(std::memory_order_relaxed); }

  // ---- the writer ----

  // Between two pieces of its work: begins and ends recording as asked. Whether it is on.
  bool turn() {
    const uint64_t asked = asked_.load(std::memory_order_acquire);
    if (asked != seen_) begin_or_end(asked);
    return on_;
  }
  bool on() const { return on_; }

  // Ends never go back from one event to the next.
  void add(const TraceEvent& event) {
    const uint64_t number = written_.load(std::memory_order_relaxed);
    // A reader that sees a word of this event sees this number, too: whoever had that place before is gone.
    begun_.store(number + 1, std::memory_order_relaxed);
    const auto words = std::bit_cast<Words>(event);
    uint64_t* const place = &slots_[next_ * words.size()];
    for (size_t i = 0; i < words.size(); ++i)
      std::atomic_ref(place[i]).store(words[i], std::memory_order_release);
    if (++next_ == capacity_) next_ = 0;
    written_.store(number + 1, std::memory_order_release);
  }

 private:
  using Words = std::array<uint64_t, sizeof(TraceEvent) / sizeof(uint64_t)>;

  void begin_or_end(uint64_t asked);
  TraceEvent read(uint64_t number) const;

  const size_t capacity_;
  const std::unique_ptr<uint64_t[]> slots_;  // [capacity, words of an event]
  std::vector<std::string> names_;
  std::atomic<uint64_t> asked_{0};  // odd: somebody wants it on; another odd number: anew
  std::atomic<int64_t> started_ns_{0};
  // Events whose writing has begun, and those that are there.
  std::atomic<uint64_t> begun_{0}, written_{0};
  // The writer's:
  size_t next_ = 0;  // the oldest, once the ring is full
  uint64_t seen_ = 0;
  bool on_ = false;
};

}  // namespace tandem
