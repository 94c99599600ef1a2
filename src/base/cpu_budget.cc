#include "base/cpu_budget.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>

namespace tandem {
namespace {

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

double quota_of_cgroup_v2() {
  // The tightest limit on the way from our own group to the root counts.
  std::ifstream file("/proc/self/cgroup");
  std::string line;
  double quota = 0;
  while (std::getline(file, line)) {
    if (line.rfind("0::", 0) != 0) continue;
    std::string group = line.substr(3);
    while (true) {
      const double cpus =
          parse_cpu_max(first_line("/sys/fs/cgroup" + (group == "/" ? "" : group) + "/cpu.max"));
      if (cpus > 0 && (quota == 0 || cpus < quota)) quota = cpus;
      if (group.empty() || group == "/") break;
      group.resize(group.rfind('/'));
    }
  }
  return quota;
}

double quota_of_cgroup_v1() {
  const std::string quota = first_line("/sys/fs/cgroup/cpu/cpu.cfs_quota_us");
  const std::string period = first_line("/sys/fs/cgroup/cpu/cpu.cfs_period_us");
  if (quota.empty() || period.empty() || quota[0] == '-') return 0;
  return parse_cpu_max(quota + " " + period);
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
  budget.quota_cpus = quota_of_cgroup_v2();
  if (budget.quota_cpus == 0) budget.quota_cpus = quota_of_cgroup_v1();
  budget.threads = budget.affinity_cpus;
  if (budget.quota_cpus > 0) {
    budget.threads = std::clamp(static_cast<int>(std::floor(budget.quota_cpus)), 1, budget.affinity_cpus);
  }
  return budget;
}

}  // namespace tandem
