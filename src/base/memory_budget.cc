#include "base/memory_budget.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <optional>
#include <sstream>

namespace tandem {
namespace {

// The number of a file with one number; none for "max" or a file that is not there.
std::optional<uint64_t> number_in(const std::string& path) {
  std::ifstream file(path);
  uint64_t value = 0;
  return file >> value ? std::optional(value) : std::nullopt;
}

// The sum of the named lines of a memory.stat.
uint64_t stat_sum(const std::string& text, const std::array<const char*, 2>& names) {
  std::istringstream stream(text);
  std::string name;
  uint64_t value = 0, sum = 0;
  while (stream >> name >> value) {
    if (std::ranges::find(names, name) != names.end()) sum += value;
  }
  return sum;
}

// How a version of cgroups names what counts.
struct MemoryFiles {
  const char* limit;
  const char* used;
  std::array<const char*, 2> cache;  // lines of memory.stat
};

constexpr MemoryFiles kV1Files = {
    "/memory.limit_in_bytes", "/memory.usage_in_bytes", {"total_inactive_file", "total_active_file"}};
constexpr MemoryFiles kV2Files = {"/memory.max", "/memory.current", {"inactive_file", "active_file"}};

// v1 writes "no limit" as the largest page-aligned number.
constexpr uint64_t kNoLimit = uint64_t{1} << 60;

}  // namespace

std::string bytes_text(uint64_t bytes) {
  constexpr std::array<const char*, 5> kUnits = {"KiB", "MiB", "GiB", "TiB", "PiB"};
  if (bytes < 1024) return fmt::format("{} bytes", bytes);
  double value = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return fmt::format("{:.1f} {}", value, kUnits[unit]);
}

uint64_t parse_mem_available(const std::string& meminfo) {
  std::istringstream stream(meminfo);
  std::string line;
  while (std::getline(stream, line)) {
    uint64_t kib = 0;
    if (line.rfind("MemAvailable:", 0) == 0 && std::istringstream(line.substr(13)) >> kib) return kib * 1024;
  }
  return MemoryBudget::kUnlimited;
}

uint64_t memory_left_in(const CgroupFolder& folder) {
  const MemoryFiles& files = folder.version == CgroupVersion::v1 ? kV1Files : kV2Files;
  const auto limit = number_in(folder.path + files.limit);
  if (!limit || *limit > kNoLimit) return MemoryBudget::kUnlimited;
  const uint64_t used = number_in(folder.path + files.used).value_or(0);
  const uint64_t cache = stat_sum(kernel_file_text(folder.path + "/memory.stat"), files.cache);
  return *limit - std::min(*limit, used - std::min(used, cache));
}

MemoryBudget MemoryBudget::detect() {
  MemoryBudget budget;
  budget.system_available = parse_mem_available(kernel_file_text("/proc/meminfo"));
  for (const CgroupFolder& folder : cgroup_folders("memory")) {
    budget.cgroup_available = std::min(budget.cgroup_available, memory_left_in(folder));
  }
  return budget;
}

uint64_t MemoryBudget::available() const {
  return std::min({system_available, cgroup_available, configured});
}

std::string MemoryBudget::text() const {
  const auto part = [](uint64_t bytes) {
    return bytes == kUnlimited ? std::string("no limit") : bytes_text(bytes);
  };
  std::string sources = fmt::format("system {}, cgroup {}", part(system_available), part(cgroup_available));
  if (configured != kUnlimited) sources += fmt::format(", configured {}", part(configured));
  return fmt::format("{} ({})", part(available()), sources);
}

}  // namespace tandem
