#include "bench/sharing_bench.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace tandem::bench {
namespace {

SharingOptions small() {
  SharingOptions options;
  options.clients = 6;
  options.experts = 8;
  options.top_k = 2;
  options.hidden = 128;
  options.intermediate = 128;
  options.layers = 3;
  options.seconds = 0.2;
  options.runs = 2;
  return options;
}

// Every client's first answer was compared with the experts' own before anything was measured.
TEST(SharingBench, EveryArmServesEveryClient) {
  SharingOptions options = small();
  options.arms = {"fifo", "oldest", "merge", "colocated", "flood", "connections", "stall"};
  const auto report = run_sharing_bench(options, true);
  ASSERT_TRUE(report) << report.error().message;
  const auto document = nlohmann::json::parse(*report);
  ASSERT_EQ(document.at("arms").size(), options.arms.size());
  for (size_t i = 0; i < options.arms.size(); ++i) {
    const auto& arm = document.at("arms").at(i);
    EXPECT_EQ(arm.at("arm"), options.arms[i]);
    EXPECT_GT(arm.at("client_tokens").at(0).get<double>(), 0) << options.arms[i];
    EXPECT_GT(arm.at("p99_ms").get<double>(), 0);
    if (options.arms[i] == "colocated") continue;
    EXPECT_GT(arm.at("bytes_per_token").get<double>(), 0);
    EXPECT_GE(arm.at("clients_per_call").get<double>(), 1);
  }
  EXPECT_EQ(document.at("arms").at(0).at("clients_per_call"), 1.0);  // that is what fifo means
  EXPECT_GT(document.at("arms").at(4).at("trouble").get<int>(), 0);
  EXPECT_GT(document.at("arms").at(5).at("trouble").get<int>(), 0);
}

TEST(SharingBench, TheTableHasALineForEachArm) {
  SharingOptions options = small();
  options.transport = "tcp";
  options.think_ms = 0.1;
  options.seconds = 0.1;
  const auto report = run_sharing_bench(options, false);
  ASSERT_TRUE(report) << report.error().message;
  for (const char* part : {"6 clients, 4 rows a request", "\nfifo ", "\nmerge ", "over tcp"})
    EXPECT_NE(report->find(part), std::string::npos) << *report;
}

TEST(SharingBench, BadOptionsAreRefusedByName) {
  SharingOptions options = small();
  options.arms = {"lifo"};
  EXPECT_EQ(run_sharing_bench(options, false).error().message,
            "bench sharing: arm 'lifo' is unknown; use some of merge, oldest, fifo, colocated, flood, "
            "connections, stall");
  options = small();
  options.top_k = 9;
  EXPECT_EQ(run_sharing_bench(options, false).error().message,
            "bench sharing: 9 of 8 experts: 1 to all of them would do");
  options = small();
  options.rows = 65;
  EXPECT_EQ(run_sharing_bench(options, false).error().code, ErrorCode::invalid_argument);
}

}  // namespace
}  // namespace tandem::bench
