#include "base/memory_budget.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

namespace tandem {
namespace {

TEST(MemoryBudget, Meminfo) {
  EXPECT_EQ(parse_mem_available("MemTotal: 100 kB\nMemAvailable:   2048 kB\n"), 2048u * 1024);
  EXPECT_EQ(parse_mem_available("MemTotal: 100 kB\n"), MemoryBudget::kUnlimited);
  EXPECT_EQ(parse_mem_available("MemAvailable: many kB\n"), MemoryBudget::kUnlimited);
}

class CgroupTree : public testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(root_ / "a/b"); }
  void TearDown() override { std::filesystem::remove_all(root_); }

  void write(const std::string& path, const std::string& text) {
    std::ofstream(root_ / path) << text;
    ASSERT_TRUE(std::filesystem::exists(root_ / path));
  }

  uint64_t least(CgroupVersion version, const std::string& group) {
    uint64_t least = MemoryBudget::kUnlimited;
    for (const std::string& folder : way_to_root(root_, group)) {
      least = std::min(least, memory_left_in({version, folder}));
    }
    return least;
  }

  const std::filesystem::path root_ =
      std::filesystem::temp_directory_path() / ("tandem_cgroup_" + std::to_string(getpid()));
};

// An ancestor's limit counts, and cache is not used memory.
TEST_F(CgroupTree, Version2) {
  write("a/b/memory.max", "max\n");
  write("a/b/memory.current", "999999\n");
  write("a/memory.max", "1000\n");
  write("a/memory.current", "700\n");
  write("a/memory.stat", "anon 300\ninactive_file 250\nactive_file 150\n");
  EXPECT_EQ(least(CgroupVersion::v2, "/a/b"), 700u);
  EXPECT_EQ(least(CgroupVersion::v2, "/"), MemoryBudget::kUnlimited);
  write("a/b/memory.max", "100\n");
  EXPECT_EQ(least(CgroupVersion::v2, "/a/b"), 0u);
  EXPECT_EQ(least(CgroupVersion::v2, "/not/there"), MemoryBudget::kUnlimited);
}

TEST_F(CgroupTree, Version1) {
  write("a/b/memory.limit_in_bytes", "9223372036854771712\n");
  write("a/b/memory.usage_in_bytes", "999999\n");
  EXPECT_EQ(least(CgroupVersion::v1, "/a/b"), MemoryBudget::kUnlimited);
  write("a/memory.limit_in_bytes", "1000\n");
  write("a/memory.usage_in_bytes", "700\n");
  write("a/memory.stat", "inactive_file 1\ntotal_inactive_file 250\ntotal_active_file 150\n");
  EXPECT_EQ(least(CgroupVersion::v1, "/a/b"), 700u);
}

TEST(Cgroup, GroupsInTheListOfTheProcess) {
  const std::string text = "4:cpu,cpuacct:/jobs/one\n3:cpuset:/\n2:memory:/jobs:two\n0::/user.slice/x\n";
  EXPECT_EQ(group_in(text, CgroupVersion::v1, "cpu"), "/jobs/one");
  EXPECT_EQ(group_in(text, CgroupVersion::v1, "memory"), "/jobs:two");
  EXPECT_EQ(group_in(text, CgroupVersion::v1, "pids"), std::nullopt);
  EXPECT_EQ(group_in(text, CgroupVersion::v2, "memory"), "/user.slice/x");
  EXPECT_EQ(group_in("", CgroupVersion::v2, "memory"), std::nullopt);
  EXPECT_EQ(way_to_root("/r", "/a/b"), (std::vector<std::string>{"/r/a/b", "/r/a", "/r"}));
  EXPECT_EQ(way_to_root("/r", "/"), std::vector<std::string>{"/r"});
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
