// CpuBudget: how many threads this process may use: the least of the affinity mask and the cgroup quota, or
// what the user said. Roles on one host share it: `tandem up` passes each child its part.
#pragma once

#include <string>

#include "base/result.h"

namespace tandem {

struct CpuBudget {
  int affinity_cpus = 1;  // CPUs in the affinity mask
  double quota_cpus = 0;  // cgroup v1/v2 quota in CPUs; 0 = none
  int threads = 1;        // what a pool should use

  // Reads the mask and the quota of this process.
  static CpuBudget detect();
};

// The quota in CPUs of cgroup v2's cpu.max text ("max 100000", "150000 100000"); 0 for none or for text that
// is not one.
double parse_cpu_max(const std::string& text);

}  // namespace tandem
