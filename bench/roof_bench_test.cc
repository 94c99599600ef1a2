// run_roof_bench: refusals by name, every kind reported in both forms for each table, and what ReadMemory
// says of its pages.
#include "bench/roof_bench.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "bench/roofs.h"
#include "kernels/kernel_table.h"

namespace tandem {
namespace {

RoofBenchOptions small_options() {
  RoofBenchOptions options;
  options.threads = 2;
  options.runs = 1;
  options.seconds = 0.0005;
  options.read_bytes = size_t{2} << 20;
  return options;
}

TEST(RoofBenchTest, RefusesBadOptionsByName) {
  RoofBenchOptions options = small_options();
  options.runs = 0;
  const auto runs = run_roof_bench(options, false);
  ASSERT_FALSE(runs.has_value());
  EXPECT_EQ(runs.error().code, ErrorCode::invalid_argument);
  EXPECT_NE(runs.error().message.find("runs 0"), std::string::npos) << runs.error().message;
  options = small_options();
  options.read_bytes += 4096;
  EXPECT_FALSE(run_roof_bench(options, false).has_value());
}

TEST(RoofBenchTest, EveryRunnableTableHasEveryKind) {
  RoofBenchOptions options = small_options();
  options.all_tables = true;
  const auto text = run_roof_bench(options, true);
  ASSERT_TRUE(text.has_value()) << text.error().message;
  const auto json = nlohmann::json::parse(*text);
  EXPECT_EQ(json["threads"], 2);
  EXPECT_EQ(json["runs"], 1);
  EXPECT_EQ(json["read_bytes"], 2 << 20);
  ASSERT_EQ(json["tables"].size(), runnable_kernel_tables().size());
  size_t in_use = 0;
  for (size_t i = 0; i < json["tables"].size(); ++i) {
    const auto& table = json["tables"][i];
    EXPECT_EQ(table["table"], std::string(runnable_kernel_tables()[i]->name));
    in_use += table["in_use"].get<bool>() ? 1 : 0;
    for (const char* pages : {"small_pages", "huge_pages"}) {
      EXPECT_GT(table["read"][pages]["one_thread"].get<double>(), 0) << pages;
      EXPECT_GT(table["read"][pages]["all_threads"].get<double>(), 0) << pages;
    }
    for (const char* peak : {"bf16_dot", "int8_dot", "f32_fma"}) {
      EXPECT_GT(table[peak]["one_thread"].get<double>(), 0) << peak;
      EXPECT_GT(table[peak]["all_threads"].get<double>(), 0) << peak;
    }
  }
  EXPECT_EQ(in_use, 1u);
  // Without huge pages, the report says so.
  EXPECT_EQ(json["huge_pages"]["bytes"].get<size_t>() < options.read_bytes,
            !json["huge_pages"]["note"].get<std::string>().empty());
}

TEST(RoofBenchTest, TextNamesTheTableInUse) {
  const auto text = run_roof_bench(small_options(), false);
  ASSERT_TRUE(text.has_value()) << text.error().message;
  for (const char* part : {"(in use)", "read, small pages", "read, huge pages", "bf16 dot", "int8 dot",
                           "f32 fma", "medians of 1 runs"}) {
    EXPECT_NE(text->find(part), std::string::npos) << part << " in " << *text;
  }
}

TEST(RoofBenchTest, SmallPagesAreNotHuge) {
  const auto memory = bench::ReadMemory::create(size_t{4} << 20, bench::PageKind::small);
  ASSERT_TRUE(memory.has_value());
  EXPECT_EQ(memory->huge_bytes(), 0u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(memory->data()) % (size_t{2} << 20), 0u);
}

TEST(RoofBenchTest, LoopsCountWhatTheyCompute) {
  for (const KernelTable* table : runnable_kernel_tables()) {
    const bench::RoofLoops* loops = bench::roof_loops(table->name);
    ASSERT_NE(loops, nullptr) << table->name;
    double operations = 0;
    // Bytes are all 1 and so is every product: the sum of a lane, or of all, is how many there were.
    const float sum = loops->dot_i8(10, operations);
    EXPECT_GT(sum, 0) << table->name;
    EXPECT_EQ(static_cast<int64_t>(operations) % static_cast<int64_t>(sum), 0) << table->name;
  }
}

}  // namespace
}  // namespace tandem
