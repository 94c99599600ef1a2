// MemoryBudget: how much memory this process may still take: what the system has available, and what the
// cgroup limits on the way to the root leave. Page cache counts as free, for the kernel gives it back.
#pragma once

#include <cstdint>
#include <string>

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
// What the group `group` ("/a/b") of the cgroup v2 tree at `root` may still take, its ancestors' limits
// included.
uint64_t cgroup_v2_available(const std::string& root, std::string group);

// "3.2 GiB", "17 bytes".
std::string bytes_text(uint64_t bytes);

}  // namespace tandem
