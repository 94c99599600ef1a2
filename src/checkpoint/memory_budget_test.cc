#include "checkpoint/memory_budget.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "checkpoint/safetensors_writer.h"

namespace tandem {
namespace {

TEST(MemoryBudget, Meminfo) {
  EXPECT_EQ(parse_mem_available("MemTotal: 100 kB\nMemAvailable:   2048 kB\n"), 2048u * 1024);
  EXPECT_EQ(parse_mem_available("MemTotal: 100 kB\n"), MemoryBudget::kUnlimited);
  EXPECT_EQ(parse_mem_available("MemAvailable: many kB\n"), MemoryBudget::kUnlimited);
}

// An ancestor's limit counts, and cache is not used memory.
TEST(MemoryBudget, CgroupTree) {
  const auto root = std::filesystem::temp_directory_path() / ("tandem_cgroup_" + std::to_string(getpid()));
  std::filesystem::create_directories(root / "a/b");
  ASSERT_TRUE(write_text_file(root / "a/b/memory.max", "max\n"));
  ASSERT_TRUE(write_text_file(root / "a/b/memory.current", "999999\n"));
  ASSERT_TRUE(write_text_file(root / "a/memory.max", "1000\n"));
  ASSERT_TRUE(write_text_file(root / "a/memory.current", "700\n"));
  ASSERT_TRUE(write_text_file(root / "a/memory.stat", "anon 300\ninactive_file 250\nactive_file 150\n"));
  EXPECT_EQ(cgroup_v2_available(root, "/a/b"), 700u);
  EXPECT_EQ(cgroup_v2_available(root, "/"), MemoryBudget::kUnlimited);
  ASSERT_TRUE(write_text_file(root / "a/b/memory.max", "100\n"));
  EXPECT_EQ(cgroup_v2_available(root, "/a/b"), 0u);
  EXPECT_EQ(cgroup_v2_available(root, "/not/there"), MemoryBudget::kUnlimited);
  std::filesystem::remove_all(root);
}

TEST(MemoryBudget, Text) {
  EXPECT_EQ(bytes_text(17), "17 bytes");
  EXPECT_EQ(bytes_text(1536), "1.5 KiB");
  EXPECT_EQ(bytes_text(uint64_t{3} << 30), "3.0 GiB");
  MemoryBudget budget{
      .system_available = 2048, .cgroup_available = 1024, .configured = MemoryBudget::kUnlimited};
  EXPECT_EQ(budget.available(), 1024u);
  EXPECT_EQ(budget.text(), "1.0 KiB (system 2.0 KiB, cgroup 1.0 KiB)");
  budget.configured = 512;
  EXPECT_EQ(budget.text(), "512 bytes (system 2.0 KiB, cgroup 1.0 KiB, configured 512 bytes)");
  EXPECT_GT(MemoryBudget::detect().available(), 0u);
}

}  // namespace
}  // namespace tandem
