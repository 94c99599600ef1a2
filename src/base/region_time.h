// Where a thread's time went: the part that it spent computing. ThreadPool adds every region that a thread
// owned; other computing that runs outside of a pool says so with a RegionTimer. What is left of a step when
// computing and waiting are taken away is host time: planning, submitting, frames, replies.
#pragma once

#include "base/clock.h"

namespace tandem {

namespace detail {
inline thread_local Duration region_time{};
inline thread_local Duration join_time{};
}

// Of the calling thread, since it began. Differences count.
inline Duration region_time_of_this_thread() {
  return detail::region_time;
}

// The part of it in which a pool's caller had no task left and waited for those that other threads had begun.
inline Duration join_time_of_this_thread() {
  return detail::join_time;
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
