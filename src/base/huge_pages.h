// HugePages: whether large buffers are backed by 2 MiB pages, and what the kernel really gave. A process has
// one mode, set once before any large buffer is taken (OwnedBuffer asks for it). Reading is for any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"

namespace tandem {

inline constexpr size_t kHugePageBytes = size_t{2} << 20;

enum class HugePages : uint8_t {
  automatic,  // transparent ones where the kernel has them
  off,        // none, even where the kernel gives them unasked
  on,         // those that the administrator has reserved, then transparent ones
};

// unavailable, for `on`: the kernel gave none for a trial, with what would do.
Status set_huge_pages(HugePages mode);
HugePages huge_pages();

// Memory of this process, and the part of it that huge pages back.
struct HugePageUse {
  uint64_t resident = 0;  // bytes that have a page at all
  uint64_t huge = 0;
  std::string text() const;  // "2.4 GiB of 2.5 GiB"
};
struct MemoryRange {
  const void* begin = nullptr;
  size_t bytes = 0;
};
// Of ranges of this process, from /proc/self/smaps; nothing when it cannot be read.
std::optional<HugePageUse> huge_page_use(std::span<const MemoryRange> ranges);
// The same from smaps' text. A mapping that is larger than a range counts by at most their overlap.
HugePageUse parse_smaps(std::string_view smaps, std::span<const MemoryRange> ranges);

// Takes some memory as a buffer would, touches it, and says what it got.
HugePageUse try_huge_pages();
// "transparent: madvise; reserved: 12 of 16 free": what the kernel offers.
std::string huge_pages_offered();

}  // namespace tandem
