// run_kernel_bench: refusals by name, and one small case measured and reported in both forms.
#include "bench/kernel_bench.h"

#include <gtest/gtest.h>

namespace tandem {
namespace {

TEST(KernelBenchTest, RefusesBadOptionsByName) {
  KernelBenchOptions options;
  options.rounds = 0;
  const auto rounds = run_kernel_bench(options, false);
  ASSERT_FALSE(rounds.has_value());
  EXPECT_EQ(rounds.error().code, ErrorCode::invalid_argument);
  EXPECT_NE(rounds.error().message.find("rounds 0"), std::string::npos);
  options.rounds = 1;
  options.filter = "no such case";
  const auto filter = run_kernel_bench(options, false);
  ASSERT_FALSE(filter.has_value());
  EXPECT_EQ(filter.error().code, ErrorCode::invalid_argument);
  EXPECT_NE(filter.error().message.find("no such case"), std::string::npos);
  EXPECT_NE(filter.error().message.find("matmul 2048x1408 rows 1"), std::string::npos);
}

TEST(KernelBenchTest, ReportsRoofsAndShares) {
  KernelBenchOptions options;
  options.rounds = 1;
  options.seconds = 0.001;
  options.filter = "prefill 64 at 960";  // the smallest case
  const auto json = run_kernel_bench(options, true);
  ASSERT_TRUE(json.has_value()) << json.error().message;
  for (const char* key : {"\"table\":", "\"read_gigabytes_per_second\":", "\"bf16_dot_gigaflops\":",
                          "\"name\":\"gqa 32/4 heads of 128, prefill 64 at 960\"", "\"share\":"}) {
    EXPECT_NE(json->find(key), std::string::npos) << key << " in " << *json;
  }
  const auto table = run_kernel_bench(options, false);
  ASSERT_TRUE(table.has_value()) << table.error().message;
  EXPECT_NE(table->find("roofs: read "), std::string::npos) << *table;
  EXPECT_NE(table->find("prefill 64 at 960"), std::string::npos) << *table;
}

}  // namespace
}  // namespace tandem
