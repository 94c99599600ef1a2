// MemoryBudget: how much memory this process may still take: what the system has available, and what the
// cgroup limits on the way to the root leave. Page cache counts as free, for the kernel gives it back.
#pragma once

#include <cstdint>
#include <string>

#include "base/cgroup.h"

namespace tandem {

struct MemoryBudget {
  static constexpr uint64_t kUnlimited = UINT64_MAX;

  uint64_t system_available = kUnlimited;  // MemAvailable; unlimited when it cannot be read
  uint64_t cgroup_available = kUnlimited;  // unlimited: no limit
  uint64_t configured = kUnlimited;        // what the user allows

  uint64_t available() const;
  // "19.5 GiB (system 19.5 GiB, cgroup no limit)"
  std::string text() const;

  static MemoryBudget detect();
};

// MemAvailable in /proc/meminfo's text, in bytes; unlimited when it is not there.
uint64_t parse_mem_available(const std::string& meminfo);
// What the limit that stands in `folder`, a group's folder, leaves; unlimited: it sets none.
uint64_t memory_left_in(const CgroupFolder& folder);

// "3.2 GiB", "17 bytes".
std::string bytes_text(uint64_t bytes);

}  // namespace tandem
