// HostFacts: the machine that a figure was measured on. A value; any thread.
#pragma once

#include <array>
#include <cstdint>
#include <string>

namespace tandem {

struct HostFacts {
  std::string cpu;       // "unknown" where the system does not say
  int cores = 0;         // that this process may use
  std::string governor;  // of the clock's frequency; "unreadable" in most virtual machines
  uint64_t memory_bytes = 0, memory_available_bytes = 0;
  std::string kernel;
};
HostFacts read_host_facts();

// Load averages over 1, 5 and 15 minutes.
std::array<double, 3> read_load();

}  // namespace tandem
