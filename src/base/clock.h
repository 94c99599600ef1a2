// Time in this process: one monotonic clock. No two processes compare their clocks; durations travel,
// instants do not.
#pragma once

#include <chrono>
#include <cstdint>

namespace tandem {

using Clock = std::chrono::steady_clock;
using Instant = Clock::time_point;
using Duration = Clock::duration;

inline Instant now() {
  return Clock::now();
}

inline uint32_t microseconds_since(Instant start, Instant end = now()) {
  const auto count = std::chrono::duration_cast<std::chrono::microseconds>(end - start).count();
  return count <= 0 ? 0 : count >= UINT32_MAX ? UINT32_MAX : static_cast<uint32_t>(count);
}

inline double seconds_since(Instant start, Instant end = now()) {
  return std::chrono::duration<double>(end - start).count();
}

}  // namespace tandem
