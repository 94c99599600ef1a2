#include "bench/two_cpus.h"

#include <sched.h>

#include <cstring>

namespace tandem {

TwoCpus TwoCpus::detect() {
  TwoCpus cpus;
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE && cpus.second < 0; ++cpu) {
    if (CPU_ISSET(cpu, &set)) (cpus.first < 0 ? cpus.first : cpus.second) = cpu;
  }
  return cpus;
}

void stay_on_cpu(int cpu) {
  if (cpu < 0) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  sched_setaffinity(0, sizeof(set), &set);
}

KeptAffinity::KeptAffinity() {
  cpu_set_t set;
  static_assert(sizeof(set) <= sizeof(mask_));
  known_ = sched_getaffinity(0, sizeof(set), &set) == 0;
  std::memcpy(mask_, &set, sizeof(set));
}

KeptAffinity::~KeptAffinity() {
  cpu_set_t set;
  std::memcpy(&set, mask_, sizeof(set));
  if (known_) sched_setaffinity(0, sizeof(set), &set);
}

}  // namespace tandem
