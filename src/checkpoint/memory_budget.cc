#include "checkpoint/memory_budget.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <optional>
#include <sstream>

namespace tandem {
namespace {

std::string whole_file(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

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

uint64_t left(uint64_t limit, uint64_t used, uint64_t cache) {
  const uint64_t held = used - std::min(used, cache);
  return limit - std::min(limit, held);
}

uint64_t cgroup_v1_available(const std::string& group) {
  const auto limit = number_in(group + "/memory.limit_in_bytes");
  // No limit is written as the largest page-aligned number.
  if (!limit || *limit > uint64_t{1} << 60) return MemoryBudget::kUnlimited;
  const uint64_t cache =
      stat_sum(whole_file(group + "/memory.stat"), {"total_inactive_file", "total_active_file"});
  return left(*limit, number_in(group + "/memory.usage_in_bytes").value_or(0), cache);
}

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

uint64_t cgroup_v2_available(const std::string& root, std::string group) {
  uint64_t available = MemoryBudget::kUnlimited;
  if (group == "/") group.clear();
  while (true) {
    const std::string folder = root + group;
    if (const auto limit = number_in(folder + "/memory.max")) {
      const uint64_t cache = stat_sum(whole_file(folder + "/memory.stat"), {"inactive_file", "active_file"});
      available = std::min(available, left(*limit, number_in(folder + "/memory.current").value_or(0), cache));
    }
    if (group.empty()) return available;
    const size_t slash = group.rfind('/');
    group.resize(slash == std::string::npos ? 0 : slash);
  }
}

MemoryBudget MemoryBudget::detect() {
  MemoryBudget budget;
  budget.system_available = parse_mem_available(whole_file("/proc/meminfo"));
  budget.cgroup_available = cgroup_v1_available("/sys/fs/cgroup/memory");
  std::istringstream groups(whole_file("/proc/self/cgroup"));
  std::string line;
  while (std::getline(groups, line)) {
    if (line.rfind("0::", 0) == 0) {
      budget.cgroup_available =
          std::min(budget.cgroup_available, cgroup_v2_available("/sys/fs/cgroup", line.substr(3)));
    }
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
