#include "base/huge_pages.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstring>

#include "base/buffer.h"
#include "base/cgroup.h"
#include "base/memory_budget.h"

namespace tandem {
namespace {

std::atomic<HugePages> process_mode{HugePages::automatic};

// Enough that a kernel which has any gives one of them, and touched in a millisecond.
constexpr size_t kTrialBytes = 4 * kHugePageBytes;

std::string_view next_line(std::string_view& text) {
  const size_t end = text.find('\n');
  const std::string_view line = text.substr(0, end);
  text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  return line;
}

// "AnonHugePages:     2048 kB"
uint64_t kib_of(std::string_view line) {
  line.remove_prefix(std::min(line.size(), line.find(':') + 1));
  line.remove_prefix(std::min(line.size(), line.find_first_not_of(' ')));
  uint64_t value = 0;
  std::from_chars(line.data(), line.data() + line.size(), value);
  return value * 1024;
}

// "7f00-7f10 rw-p ..."
bool parse_bounds(std::string_view line, uint64_t& begin, uint64_t& end) {
  const char* last = line.data() + line.size();
  const auto first = std::from_chars(line.data(), line.data() + line.size(), begin, 16);
  if (first.ec != std::errc() || first.ptr == last || *first.ptr != '-') return false;
  const auto second = std::from_chars(first.ptr + 1, last, end, 16);
  return second.ec == std::errc() && second.ptr != last && *second.ptr == ' ';
}

std::string reserved_text() {
  uint64_t total = 0, free = 0;
  const std::string memory = kernel_file_text("/proc/meminfo");
  std::string_view text = memory;
  while (!text.empty()) {
    const std::string_view line = next_line(text);
    if (line.starts_with("HugePages_Total:")) total = kib_of(line) / 1024;
    if (line.starts_with("HugePages_Free:")) free = kib_of(line) / 1024;
  }
  return std::to_string(free) + " of " + std::to_string(total) + " reserved pages are free";
}

}  // namespace

std::string HugePageUse::text() const {
  return bytes_text(huge) + " of " + bytes_text(resident);
}

HugePages huge_pages() {
  return process_mode.load(std::memory_order_relaxed);
}

Status set_huge_pages(HugePages mode) {
  process_mode.store(mode);
  if (mode != HugePages::on || try_huge_pages().huge > 0) return {};
  return make_error(
      ErrorCode::unavailable,
      "engine.huge_pages: on: the kernel gave none for " + bytes_text(kTrialBytes) + " (" +
          huge_pages_offered() +
          "); write madvise to /sys/kernel/mm/transparent_hugepage/enabled, reserve some (sysctl "
          "vm.nr_hugepages=N), or use auto");
}

HugePageUse parse_smaps(std::string_view smaps, std::span<const MemoryRange> ranges) {
  HugePageUse use;
  uint64_t overlap = 0, resident = 0, huge = 0;  // of the mapping whose lines are read
  const auto close = [&] {
    use.resident += std::min(overlap, resident);
    use.huge += std::min(overlap, huge);
    overlap = resident = huge = 0;
  };
  while (!smaps.empty()) {
    const std::string_view line = next_line(smaps);
    uint64_t begin = 0, end = 0;
    if (parse_bounds(line, begin, end)) {
      close();
      for (const MemoryRange& range : ranges) {
        const auto from = reinterpret_cast<uintptr_t>(range.begin);
        const uint64_t low = std::max<uint64_t>(begin, from),
                       high = std::min<uint64_t>(end, from + range.bytes);
        if (low < high) overlap += high - low;
      }
    } else if (overlap == 0) {
      continue;
    } else if (line.starts_with("Rss:")) {
      resident += kib_of(line);
    } else if (line.starts_with("Private_Hugetlb:") || line.starts_with("Shared_Hugetlb:")) {
      resident += kib_of(line);  // that Rss leaves out
      huge += kib_of(line);
    } else if (line.starts_with("AnonHugePages:") || line.starts_with("FilePmdMapped:") ||
               line.starts_with("ShmemPmdMapped:")) {
      huge += kib_of(line);
    }
  }
  close();
  return use;
}

std::optional<HugePageUse> huge_page_use(std::span<const MemoryRange> ranges) {
  const std::string text = kernel_file_text("/proc/self/smaps");
  if (text.empty()) return std::nullopt;
  return parse_smaps(text, ranges);
}

HugePageUse try_huge_pages() {
  const Result<OwnedBuffer> buffer = OwnedBuffer::allocate(kTrialBytes);
  if (!buffer) return {};
  std::memset(buffer->data(), 1, buffer->size());
  const MemoryRange range{buffer->data(), buffer->size()};
  return huge_page_use({&range, 1}).value_or(HugePageUse{});
}

std::string huge_pages_offered() {
  std::string mode = kernel_file_text("/sys/kernel/mm/transparent_hugepage/enabled");
  const size_t begin = mode.find('['), end = mode.find(']');
  mode = begin == std::string::npos || end == std::string::npos ? "not in this kernel"
                                                                : mode.substr(begin + 1, end - begin - 1);
  return "transparent: " + mode + "; " + reserved_text();
}

}  // namespace tandem
