// Where a thread's time went: the part that it spent computing. ThreadPool adds every region that a thread
// owned; other computing that runs outside of a pool says so with a RegionTimer. What is left of a step when
// computing and waiting are taken away is host time: planning, submitting, frames, replies.
#pragma once

#include "base/clock.h"

namespace tandem {

namespace detail {
inline thread_local Duration region_time{};
}

// Of the calling thread, since it began. Differences count.
inline Duration region_time_of_this_thread() {
  return detail::region_time;
}

class RegionTimer {
 public:
  RegionTimer() : start_(now()) {}
  ~RegionTimer() { detail::region_time += now() - start_; }
  RegionTimer(const RegionTimer&) = delete;
  RegionTimer& operator=(const RegionTimer&) = delete;

 private:
  Instant start_;
};

}  // namespace tandem
