#include "base/trace_ring.h"

#include <algorithm>
#include <chrono>

namespace tandem {

TraceRing::TraceRing(size_t capacity)
    : capacity_(std::max<size_t>(1, capacity)),
      // Fresh pages, which cost nothing until they are written.
      slots_(std::make_unique_for_overwrite<uint64_t[]>(capacity_ * Words().size())) {}

uint32_t TraceRing::name(std::string_view text) {
  const auto found = std::ranges::find(names_, text);
  if (found != names_.end()) return static_cast<uint32_t>(found - names_.begin());
  names_.emplace_back(text);
  return static_cast<uint32_t>(names_.size() - 1);
}

void TraceRing::begin_or_end(uint64_t asked) {
  seen_ = asked;
  on_ = asked % 2 == 1;
  if (on_) started_ns_.store(trace_time(now()), std::memory_order_relaxed);
}

TraceEvent TraceRing::read(uint64_t number) const {
  Words words;
  uint64_t* const place = &slots_[number % capacity_ * words.size()];
  for (size_t i = 0; i < words.size(); ++i)
    words[i] = std::atomic_ref(place[i]).load(std::memory_order_acquire);
  return std::bit_cast<TraceEvent>(words);
}

TraceWindow TraceRing::window(int64_t from_ns, uint64_t since, size_t most) const {
  TraceWindow window;
  const uint64_t end = written();
  const uint64_t room = std::min<uint64_t>(capacity_, most);
  const uint64_t oldest = std::max(since, end - std::min(end, room));
  // From the newest on, so that what lies before the window is not looked at: the ring may be large.
  uint64_t first = end;
  while (first > oldest) {
    const TraceEvent event = read(first - 1);
    if (event.end_ns < from_ns) break;
    window.events.push_back(event);
    --first;
  }
  // What the writer took up meanwhile was written over events whose numbers are `capacity` lower.
  const uint64_t begun = begun_.load(std::memory_order_relaxed);
  const uint64_t intact = begun - std::min<uint64_t>(begun, capacity_);
  if (first < intact) {
    const uint64_t lost = std::min(intact, end) - first;
    window.events.resize(window.events.size() - lost);
    first += lost;
  }
  std::ranges::reverse(window.events);

  window.complete_from_ns = std::max(from_ns, started_ns());
  if (first > since && first == std::max(oldest, intact)) {  // what is missing is not what came before
    window.dropped = first - since;
    if (!window.events.empty())
      window.complete_from_ns = std::max(window.complete_from_ns, window.events.front().end_ns);
  }
  const int64_t steady = trace_time(now());
  const int64_t wall = std::chrono::duration_cast<std::chrono::nanoseconds>(
                           std::chrono::system_clock::now().time_since_epoch())
                           .count();
  window.base_ns = from_ns == INT64_MIN ? started_ns() : from_ns;
  for (const TraceEvent& event : window.events) window.base_ns = std::min(window.base_ns, event.begin_ns);
  window.base_wall_ns = wall - (steady - window.base_ns);
  return window;
}

}  // namespace tandem
