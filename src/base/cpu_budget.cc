#include "base/cpu_budget.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <sstream>

#include "base/cgroup.h"

namespace tandem {
namespace {

double quota_in(const CgroupFolder& folder) {
  if (folder.version == CgroupVersion::v2) return parse_cpu_max(kernel_file_text(folder.path + "/cpu.max"));
  // v1 writes "no quota" as -1, which is no quota to parse_cpu_max either.
  return parse_cpu_max(kernel_file_text(folder.path + "/cpu.cfs_quota_us") + " " +
                       kernel_file_text(folder.path + "/cpu.cfs_period_us"));
}

}  // namespace

double parse_cpu_max(const std::string& text) {
  std::istringstream stream(text);
  double quota = 0;
  double period = 0;
  if (!(stream >> quota >> period) || quota <= 0 || period <= 0) return 0;
  return quota / period;
}

CpuBudget CpuBudget::detect() {
  CpuBudget budget;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) budget.affinity_cpus = std::max(1, CPU_COUNT(&set));
  for (const CgroupFolder& folder : cgroup_folders("cpu")) {
    const double cpus = quota_in(folder);
    if (cpus > 0 && (budget.quota_cpus == 0 || cpus < budget.quota_cpus)) budget.quota_cpus = cpus;
  }
  budget.threads = budget.affinity_cpus;
  if (budget.quota_cpus > 0) {
    budget.threads = std::clamp(static_cast<int>(std::floor(budget.quota_cpus)), 1, budget.affinity_cpus);
  }
  return budget;
}

}  // namespace tandem
