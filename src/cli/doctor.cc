#include "cli/doctor.h"

#include <sys/resource.h>
#include <sys/statvfs.h>

#include "base/cpu_budget.h"
#include "base/huge_pages.h"
#include "base/memory_budget.h"
#include "base/numa.h"
#include "kernels/kernel_table.h"
#include "transport/endpoint.h"

namespace tandem {
namespace {

Finding isa() {
  std::string all;
  for (const KernelTable* table : runnable_kernel_tables())
    all += (all.empty() ? "" : ", ") + std::string(table->name);
  const auto chosen = choose_kernel_table();
  if (!chosen) return {"ISA", FindingLevel::problem, all, chosen.error().message};
  const std::string found = std::string((*chosen)->name) + " (this CPU runs " + all + ")";
  if ((*chosen)->name == "scalar")
    return {"ISA", FindingLevel::notice, found,
            "only scalar kernels run: expect a tenth of the speed or less"};
  return {"ISA", FindingLevel::good, found, ""};
}

Finding threads() {
  const CpuBudget budget = CpuBudget::detect();
  std::string found = std::to_string(budget.threads) + " threads of " + std::to_string(budget.affinity_cpus) +
                      " CPUs in the affinity mask";
  found +=
      budget.quota_cpus > 0 ? ", cgroup quota " + std::to_string(budget.quota_cpus) : ", no cgroup quota";
  if (budget.quota_cpus > 0 && budget.quota_cpus < budget.affinity_cpus) {
    return {"threads", FindingLevel::notice, found,
            "the quota is below the mask: threads beyond it are throttled, so they are not used"};
  }
  return {"threads", FindingLevel::good, found, ""};
}

Finding memory() {
  return {"memory", FindingLevel::good, MemoryBudget::detect().text() + " available", ""};
}

// What a buffer really gets, not what the kernel's settings promise.
Finding huge_pages_given() {
  const HugePageUse given = try_huge_pages();
  const std::string found = given.text() + " of a trial; " + huge_pages_offered();
  if (given.huge > 0) return {"huge pages", FindingLevel::good, found, ""};
  return {
      "huge pages", FindingLevel::notice, found,
      "write madvise to /sys/kernel/mm/transparent_hugepage/enabled: weights then need fewer TLB entries"};
}

Finding memory_nodes() {
  const auto topology = NumaTopology::detect();
  if (!topology)
    return {"NUMA", FindingLevel::notice, topology.error().message, "engine.numa: off silences it"};
  std::string found = std::to_string(topology->cpus().size()) + " nodes, CPUs";
  for (const uint32_t cpus : topology->cpus()) found += " " + std::to_string(cpus);
  if (topology->cpus().size() == 1) found = "one node: nothing to bind";
  return {"NUMA", FindingLevel::good, found, ""};
}

Finding shared_memory() {
  struct statvfs status{};
  if (statvfs("/dev/shm", &status) != 0) {
    return {"/dev/shm", FindingLevel::notice, "not mounted",
            "Tandem's shared memory uses memfd, which does not need it"};
  }
  return {"/dev/shm", FindingLevel::good,
          bytes_text(uint64_t{status.f_bavail} * status.f_frsize) +
              " free (memfd is used instead: its size does not matter)",
          ""};
}

Finding locked_and_open() {
  struct rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  const std::string found = std::to_string(files.rlim_cur) + " open files";
  // 256 streams, their listener and the ranks, with as much again in reserve.
  if (files.rlim_cur < 1024) return {"limits", FindingLevel::problem, found, "raise it: ulimit -n 4096"};
  return {"limits", FindingLevel::good, found, ""};
}

Finding port_is_free(const std::string& host, int port) {
  const std::string address = "tcp://" + host + ":" + std::to_string(port);
  const auto listener = listen(address, EndpointOptions{});
  if (!listener)
    return {"port", FindingLevel::problem, listener.error().message, "choose another with --port"};
  return {"port", FindingLevel::good, host + ":" + std::to_string(port) + " is free", ""};
}

}  // namespace

std::vector<Finding> examine_machine(const std::string& host, int port) {
  return {isa(),          threads(),       memory(),          huge_pages_given(),
          memory_nodes(), shared_memory(), locked_and_open(), port_is_free(host, port)};
}

}  // namespace tandem
