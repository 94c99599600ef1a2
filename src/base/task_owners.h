// TaskOwners: which tasks of a region read memory of which owner (a NUMA node). Tasks are contiguous: those
// of owner o end at ends[o] and begin where o - 1's end. A value; nothing is allocated.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace tandem {

// More than any machine has sockets.
inline constexpr uint32_t kMaxOwners = 16;

struct TaskOwners {
  std::array<size_t, kMaxOwners> ends{};
  uint32_t count = 1;

  static TaskOwners one(size_t tasks) { return {{tasks}, 1}; }
  size_t tasks() const { return ends[count - 1]; }
};

}  // namespace tandem
