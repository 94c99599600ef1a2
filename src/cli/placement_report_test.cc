#include "cli/placement_report.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace tandem {
namespace {

ArmRun run_of(double e2e, uint64_t failed = 0) {
  ArmRun run;
  run.measure.e2e_ms = e2e;
  run.measure.requests = 8;
  run.measure.failed = failed;
  run.measure.total_tokens_per_second = 1000 / e2e;
  run.ranks = {{"attention", 0, {}, 10, 0.001, 0, 0}, {"ffn", 0, {}, 5, 0.001, 5, 0.0005}};
  return run;
}

PlacementReport report_of(std::vector<double> ffn, std::vector<double> attention) {
  PlacementReport report;
  report.model = "models/arith";
  report.shape = "1A1F";
  report.transport = "shm";
  report.profile = load_profile("seed-545", 1);
  report.build.commit = "abc123";
  report.arms = {{"ffn", "tandem up --ffn=1", {}, {}, {}}, {"attention", "tandem up --gate", {}, {}, {}}};
  for (size_t i = 0; i < ffn.size(); ++i) {
    report.arms[0].runs.push_back(run_of(ffn[i]));
    report.arms[1].runs.push_back(run_of(attention[i]));
    for (size_t arm = 0; arm < 2; ++arm) report.order.push_back(report.arms[i % 2 == 0 ? arm : 1 - arm].name);
  }
  report.no_accuracy = "the folder has none";
  return report;
}

TEST(PlacementReport, EachDeltaHasItsBandAndAVerdictInWords) {
  const std::string same = report_of({100, 102, 98}, {101, 103, 99}).markdown("x.svg");
  EXPECT_NE(same.find("| E2E ms | 100.00 | 101.00 | +1.00 (+1.0 %) | ±4.53 | inside the band: no measurable "
                      "change |"),
            std::string::npos)
      << same;
  EXPECT_NE(same.find("band = t(0.95"), std::string::npos);
  EXPECT_NE(same.find("![every run of every arm](x.svg)"), std::string::npos);
  const std::string slower = report_of({100, 102, 98}, {131, 133, 129}).markdown("");
  EXPECT_NE(slower.find("worse by 31.0 %, outside the band"), std::string::npos) << slower;
  EXPECT_NE(report_of({100}, {101}).markdown("").find("no band: each arm needs two runs"), std::string::npos);
}

TEST(PlacementReport, HasEveryRunInItsOrderAndTheCommands) {
  const std::string text = report_of({100, 102}, {201, 203}).markdown("");
  const std::string table = text.substr(text.find("## Runs"));
  const size_t places[] = {table.find("| 1 | ffn | 100.00"), table.find("| 2 | attention | 201.00"),
                           table.find("| 3 | attention | 203.00"), table.find("| 4 | ffn | 102.00")};
  for (size_t i = 0; i < 4; ++i) {
    ASSERT_NE(places[i], std::string::npos) << i << table;
    if (i > 0) {
      EXPECT_LT(places[i - 1], places[i]);
    }
  }
  EXPECT_NE(text.find("attention: tandem up --gate"), std::string::npos);
  EXPECT_NE(text.find("| commit | abc123 |"), std::string::npos);
  EXPECT_NE(text.find("Not measured: the folder has none."), std::string::npos);
}

TEST(PlacementReport, ARankWithoutDataIsNamed) {
  PlacementReport report = report_of({100, 102}, {101, 103});
  report.arms[1].runs[1].ranks[1].missing = "the process has ended";
  const std::string text = report.markdown("");
  EXPECT_NE(text.find("| ffn | attention 0 | wait 100.0 us over 20 collects; routes nothing |"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("| ffn | ffn 0 | wait 200.0 us over 10 groups; router 100.0 us over 10 calls |"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("| attention | ffn 0 | no data: the process has ended |"), std::string::npos) << text;
  EXPECT_EQ(rank_text({"ffn", 1, {}, 0, 0, 0, 0}), "no data on waits: it collected nothing; routes nothing");
}

TEST(PlacementReport, AccuracyIsComparedByItsIntervals) {
  PlacementReport report = report_of({100, 102}, {101, 103});
  report.accuracy_data = "heldout.jsonl";
  report.arms[0].accuracy = ArmAccuracy{500, 460, 0};
  report.arms[1].accuracy = ArmAccuracy{500, 460, 0};
  EXPECT_NE(report.markdown("").find("as many right answers"), std::string::npos);
  report.arms[1].accuracy->correct = 455;
  EXPECT_NE(report.markdown("").find("the intervals overlap: no measurable change"), std::string::npos);
  report.arms[1].accuracy->correct = 300;
  EXPECT_NE(report.markdown("").find("another accuracy"), std::string::npos);
}

TEST(PlacementReport, JsonHasTheSame) {
  const auto json = nlohmann::json::parse(report_of({100, 102, 98}, {131, 133, 129}).json());
  EXPECT_EQ(json["arms"][1]["metrics"]["e2e_ms"]["against_ffn"]["verdict"], "worse");
  EXPECT_EQ(json["arms"][0]["runs"].size(), 3u);
  EXPECT_EQ(json["arms"][0]["counters"][1]["router_calls"], 15);
  EXPECT_EQ(json["order"].size(), 6u);
  EXPECT_EQ(json["no_accuracy"], "the folder has none");
}

TEST(PlacementReport, FailedRequestsAreCounted) {
  PlacementReport report = report_of({100, 102}, {101, 103});
  report.arms[1].runs.push_back(run_of(100, 3));
  report.arms[0].accuracy = ArmAccuracy{10, 8, 2};
  EXPECT_EQ(report.failed_requests(), 5u);
}

TEST(PlacementChart, HasADotForEveryRunOfEveryMetricInsideThePicture) {
  const PlacementReport report = report_of({100, 102}, {150, 140});
  const std::string svg = placement_chart(report);
  size_t dots = 0;
  for (size_t at = svg.find("r=\"3\""); at != std::string::npos; at = svg.find("r=\"3\"", at + 1)) ++dots;
  EXPECT_EQ(dots, 4 * run_metrics().size());
  EXPECT_TRUE(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
  EXPECT_EQ(svg.find("nan"), std::string::npos);
}

}  // namespace
}  // namespace tandem
