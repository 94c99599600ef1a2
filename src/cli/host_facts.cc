#include "cli/host_facts.h"

#include <sys/sysinfo.h>
#include <sys/utsname.h>

#include <cstdlib>
#include <fstream>

#include "base/cpu_budget.h"
#include "base/memory_budget.h"

namespace tandem {
namespace {

std::string cpu_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

std::string governor() {
  std::ifstream file("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
  std::string name;
  return std::getline(file, name) ? name : "unreadable";
}

}  // namespace

HostFacts read_host_facts() {
  HostFacts facts;
  facts.cpu = cpu_name();
  facts.cores = CpuBudget::detect().threads;
  facts.governor = governor();
  struct sysinfo info{};
  if (::sysinfo(&info) == 0) facts.memory_bytes = uint64_t{info.totalram} * info.mem_unit;
  facts.memory_available_bytes = MemoryBudget::detect().available();
  struct utsname name{};
  if (::uname(&name) == 0) facts.kernel = std::string(name.sysname) + " " + name.release;
  return facts;
}

std::array<double, 3> read_load() {
  std::array<double, 3> load{};
  if (::getloadavg(load.data(), 3) != 3) load.fill(0);
  return load;
}

}  // namespace tandem
