#include "base/trace_ring.h"

#include <algorithm>
#include <chrono>

namespace tandem {

TraceRing::TraceRing(size_t capacity) : capacity_(std::max<size_t>(1, capacity)) {
  events_.reserve(capacity_);  // of fresh pages, which cost nothing until they are written
}

uint32_t TraceRing::name(std::string_view text) {
  const auto found = std::ranges::find(names_, text);
  if (found != names_.end()) return static_cast<uint32_t>(found - names_.begin());
  names_.emplace_back(text);
  return static_cast<uint32_t>(names_.size() - 1);
}

void TraceRing::start() {
  started_ns_ = trace_time(now());
  started_wall_ns_ = std::chrono::duration_cast<std::chrono::nanoseconds>(
                         std::chrono::system_clock::now().time_since_epoch())
                         .count();
  on_ = true;
}

std::vector<TraceEvent> TraceRing::events() const {
  std::vector<TraceEvent> ordered;
  ordered.reserve(events_.size());
  const auto oldest = events_.begin() + static_cast<std::ptrdiff_t>(next_);
  ordered.insert(ordered.end(), oldest, events_.end());
  ordered.insert(ordered.end(), events_.begin(), oldest);
  return ordered;
}

}  // namespace tandem
