#include "base/huge_pages.h"

#include <gtest/gtest.h>

#include <cstring>

#include "base/buffer.h"

namespace tandem {
namespace {

const void* at(uintptr_t address) {
  return reinterpret_cast<const void*>(address);
}

TEST(HugePages, AreCountedFromSmaps) {
  const std::string text =
      "400000-500000 r-xp 00000000 08:01 1 /bin/tandem\n"
      "Rss:                1024 kB\n"
      "AnonHugePages:      1024 kB\n"
      "VmFlags: rd ex\n"
      "7f0000000000-7f0000800000 rw-p 00000000 00:00 0 \n"
      "Rss:                6144 kB\n"
      "AnonHugePages:      4096 kB\n"
      "Private_Hugetlb:       0 kB\n"
      "7f0001000000-7f0001400000 rw-p 00000000 00:0f 2 /anon_hugepage (deleted)\n"
      "Rss:                   0 kB\n"
      "Private_Hugetlb:    4096 kB\n"
      "7f0002000000-7f0003000000 r--p 00000000 08:01 3 /cache/weights.packed\n"
      "Rss:               16384 kB\n"
      "FilePmdMapped:     16384 kB\n";
  const auto use = [&](std::initializer_list<MemoryRange> ranges) {
    return parse_smaps(text, std::span(ranges.begin(), ranges.size()));
  };
  constexpr uint64_t kMiB = 1 << 20;
  EXPECT_EQ(use({}).resident, 0u);
  EXPECT_EQ(use({{at(0x7f0000000000), 8 * kMiB}}).resident, 6 * kMiB);
  EXPECT_EQ(use({{at(0x7f0000000000), 8 * kMiB}}).huge, 4 * kMiB);
  EXPECT_EQ(use({{at(0x7f0001000000), 4 * kMiB}}).resident, 4 * kMiB);
  EXPECT_EQ(use({{at(0x7f0001000000), 4 * kMiB}}).huge, 4 * kMiB);
  // A part of a mapping counts by no more than itself.
  EXPECT_EQ(use({{at(0x7f0002200000), 2 * kMiB}}).huge, 2 * kMiB);
  const HugePageUse all =
      use({{at(0x7f0000000000), 8 * kMiB}, {at(0x7f0001000000), 4 * kMiB}, {at(0x7f0002000000), 16 * kMiB}});
  EXPECT_EQ(all.huge, 24 * kMiB);
  EXPECT_EQ(all.text(), "24.0 MiB of 26.0 MiB");
  EXPECT_EQ(parse_smaps("not a map\nRss: 5 kB", {}).resident, 0u);
}

// What the buffers of a process get is what the mode says, as far as the kernel goes along.
TEST(HugePages, BuffersFollowTheMode) {
  const auto fill = [] {
    auto buffer = OwnedBuffer::allocate(5 * kHugePageBytes + 12345);
    EXPECT_TRUE(buffer.has_value());
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer->data()) % kHugePageBytes, 0u);
    std::memset(buffer->data(), 7, buffer->size());
    const MemoryRange range{buffer->data(), buffer->size()};
    return huge_page_use({&range, 1});
  };
  ASSERT_TRUE(set_huge_pages(HugePages::off).has_value());
  auto use = fill();
  if (!use) GTEST_SKIP() << "no /proc/self/smaps";
  EXPECT_EQ(use->huge, 0u);
  EXPECT_GE(use->resident, 5 * kHugePageBytes);
  const Status forced = set_huge_pages(HugePages::on);
  use = fill();
  if (forced) {
    EXPECT_GT(use->huge, 0u);
  } else {
    EXPECT_EQ(forced.error().message.find("engine.huge_pages: on: the kernel gave none"), 0u);
    EXPECT_NE(forced.error().message.find("vm.nr_hugepages"), std::string::npos);
  }
  ASSERT_TRUE(set_huge_pages(HugePages::automatic).has_value());
  EXPECT_TRUE(fill().has_value());
}

}  // namespace
}  // namespace tandem
