#include "cli/load/metrics.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "cli/load/load_report.h"
#include "cli/svg_chart.h"

namespace tandem {
namespace {

TEST(Distribution, PercentilesInterpolateAsNumpyDoes) {
  const std::vector<double> percentiles = {25, 50, 90, 99};
  const Distribution out = distribution_of({4, 1, 3, 2}, percentiles);
  EXPECT_EQ(out.count, 4u);
  EXPECT_DOUBLE_EQ(out.mean, 2.5);
  EXPECT_DOUBLE_EQ(out.least, 1);
  EXPECT_DOUBLE_EQ(out.most, 4);
  EXPECT_NEAR(out.deviation, 1.118033988749895, 1e-12);  // numpy.std
  // numpy.percentile([4, 1, 3, 2], [25, 50, 90, 99])
  ASSERT_EQ(out.at.size(), 4u);
  EXPECT_DOUBLE_EQ(out.at[0], 1.75);
  EXPECT_DOUBLE_EQ(out.at[1], 2.5);
  EXPECT_DOUBLE_EQ(out.at[2], 3.7);
  EXPECT_DOUBLE_EQ(out.at[3], 3.97);
  EXPECT_EQ(distribution_of({7}, percentiles).at, (std::vector<double>{7, 7, 7, 7}));
  EXPECT_EQ(distribution_of({}, percentiles).at, (std::vector<double>{0, 0, 0, 0}));
}

// Sent at 1 s, tokens at 1.2, 1.3 and 1.5 s, ended at 1.6 s.
LoadRecord record() {
  LoadRecord out;
  out.due = 0.9;
  out.sent = 1;
  out.ended = 1.6;
  out.status = 200;
  out.input_tokens = 10;
  out.cached_tokens = 4;
  out.output_tokens = 3;
  out.pieces = {1.2, 1.3, 1.5};
  return out;
}

TEST(LoadRecord, TimesOfOneRequest) {
  const LoadRecord one = record();
  EXPECT_NEAR(*one.time_to_first_token(), 0.2, 1e-12);
  EXPECT_NEAR(*one.time_per_output_token(), 0.15, 1e-12);
  EXPECT_NEAR(*one.mean_gap(), 0.15, 1e-12);
  LoadRecord merged = one;  // two tokens came in one piece: TPOT counts tokens, the gap pieces
  merged.pieces = {1.2, 1.5};
  EXPECT_NEAR(*merged.time_per_output_token(), 0.15, 1e-12);
  EXPECT_NEAR(*merged.mean_gap(), 0.3, 1e-12);
  LoadRecord whole = one;
  whole.pieces.clear();
  EXPECT_FALSE(whole.time_to_first_token() || whole.time_per_output_token() || whole.mean_gap());
}

std::vector<Objective> objectives(const std::vector<std::string>& texts) {
  return parse_goodput(texts).value();
}

TEST(Goodput, EveryLimitMustBeKept) {
  EXPECT_TRUE(is_good(record(), {}));
  EXPECT_TRUE(is_good(record(), objectives({"ttft:201", "tpot:151", "itl:151", "e2el:601"})));
  for (const char* broken : {"ttft:199", "tpot:149", "itl:149", "e2el:599", "e2e:599"})
    EXPECT_FALSE(is_good(record(), objectives({broken}))) << broken;
  EXPECT_FALSE(is_good(record(), objectives({"ttft:201", "e2el:599"})));
  LoadRecord failed = record();
  failed.error = "gone";
  EXPECT_FALSE(is_good(failed, objectives({"e2el:9999"})));
  LoadRecord single = record();
  single.output_tokens = 1;
  single.pieces = {1.2};
  EXPECT_TRUE(is_good(single, objectives({"tpot:1", "itl:1"})));
}

TEST(Goodput, RefusesByName) {
  for (const auto& [text, why] :
       std::vector<std::pair<std::string, std::string>>{{"ttft", "has no limit"},
                                                        {"speed:1", "names no metric"},
                                                        {"ttft:x", "has no limit above 0"},
                                                        {"ttft:0", "has no limit above 0"}}) {
    const auto parsed = parse_goodput(std::vector<std::string>{text});
    ASSERT_FALSE(parsed) << text;
    EXPECT_EQ(parsed.error().message, "load.goodput: '" + text + "' " + why +
                                          "; use ttft, tpot, itl or e2el with milliseconds, as in ttft:500");
  }
  EXPECT_FALSE(parse_goodput(std::vector<std::string>{"ttft:1", "ttft:2"}));
  for (const char* text : {"0", "100", "x"})
    EXPECT_NE(
        parse_percentiles(std::vector<std::string>{text}).error().message.find("load.metric_percentiles"),
        std::string::npos);
  EXPECT_FALSE(parse_percentiles(std::vector<std::string>{"90", "50"}));
}

std::vector<LoadRecord> records() {
  LoadRecord second = record();
  second.due = second.sent = 1.5;
  second.ended = 3;
  second.pieces = {2.5, 2.6, 2.9};
  LoadRecord refused;
  refused.due = refused.sent = 1.55;
  refused.ended = 1.56;
  refused.status = 429;
  refused.error = "the queue is full";
  LoadRecord broken = refused;
  broken.status = 0;
  broken.error = "<no connection>";
  LoadRecord late = refused;
  late.status = 200;
  late.error = "a peer is lost";
  return {record(), second, refused, broken, late, refused};
}

TEST(LoadSummary, CountsAndDividesByTheWholeTime) {
  const LoadSummary summary = summarize(records(), {50, 99}, objectives({"ttft:500"}));
  EXPECT_EQ(summary.completed, 2u);
  EXPECT_EQ(summary.failed, 4u);
  EXPECT_EQ(summary.good, 1u);
  EXPECT_EQ(summary.failures,
            (std::map<std::string, uint64_t>{{"200, then an error", 1}, {"429", 2}, {"no reply", 1}}));
  EXPECT_EQ(summary.failure_examples.at("429"), "the queue is full");
  EXPECT_DOUBLE_EQ(summary.seconds, 2);
  EXPECT_EQ(summary.input_tokens, 20);
  EXPECT_EQ(summary.cached_tokens, 8);
  EXPECT_EQ(summary.output_tokens, 6);
  EXPECT_DOUBLE_EQ(summary.per_second(6), 3);
  EXPECT_EQ(summary.most_in_flight, 6u);  // the two, and the four that failed, overlap
  EXPECT_EQ(summary.ttft.count, 2u);
  EXPECT_NEAR(summary.ttft.at[0], 600, 1e-9);  // 200 and 1000
  EXPECT_EQ(summary.itl.count, 4u);
  EXPECT_NEAR(summary.itl.most, 300, 1e-9);
  EXPECT_NEAR(summary.send_delay.most, 100, 1e-9);
}

TEST(LoadSummary, OneThatEndsWhenTheNextBeginsDoesNotOverlapIt) {
  std::vector<LoadRecord> two = {record(), record()};
  two[1].sent = two[0].ended;
  two[1].ended = two[1].sent + 1;
  EXPECT_EQ(summarize(two, {}, {}).most_in_flight, 1u);
}

TEST(LoadReport, JsonTextAndPageSayTheSame) {
  LoadReport report;
  report.url = "http://h:1";
  report.path = "/v1/completions";
  report.model = "m<1>";
  report.load = {{"seed", "0"}};
  report.has_rate = true;
  report.summary = summarize(records(), {50, 99}, objectives({"ttft:500"}));
  const nlohmann::json json = nlohmann::json::parse(report.json());
  EXPECT_EQ(json["completed"], 2);
  EXPECT_EQ(json["failures"]["429"]["count"], 2);
  EXPECT_EQ(json["output_throughput"], 3.0);
  EXPECT_EQ(json["total_token_throughput"], 13.0);
  EXPECT_EQ(json["goodput"]["requests_per_s"], 0.5);
  EXPECT_EQ(json["ttft_ms"]["p50"], 600.0);
  EXPECT_EQ(json["itl_ms"]["max"], 300.0);
  EXPECT_EQ(json["send_delay_ms"]["max"], 100.0);
  const std::string text = report.text();
  for (const char* part : {"2 completed, 4 failed, in 2.00 s", "2: the queue is full", "3.0 tokens/s",
                           "1 of 6 requests within ttft <= 500 ms"})
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;

  const std::vector<LoadRecord> list = records();
  const std::string page = report.html(list);
  EXPECT_NE(page.find("m&lt;1&gt;"), std::string::npos);
  EXPECT_NE(page.find("&lt;no connection&gt;"), std::string::npos);
  EXPECT_EQ(page.find("<script"), std::string::npos);
  EXPECT_EQ(page.find("href"), std::string::npos);
  EXPECT_EQ(page.find("src="), std::string::npos);
  EXPECT_EQ(page.find("nan"), std::string::npos);
  size_t charts = 0;
  for (size_t at = 0; (at = page.find("<svg ", at)) != std::string::npos; ++at) ++charts;
  EXPECT_EQ(charts, 6u);
  const nlohmann::json line = nlohmann::json::parse(record_line(list[0]));
  EXPECT_NEAR(line["ttft_s"].get<double>(), 0.2, 1e-12);
  EXPECT_EQ(line["gaps_s"].size(), 2u);
  EXPECT_TRUE(nlohmann::json::parse(record_line(list[2]))["ttft_s"].is_null());
  report.html({});  // nothing was sent: no division by it
}

// One gap of five seconds among hundreds of some milliseconds does not flatten the chart.
TEST(LoadPage, TheLongestHundredthIsLeftOutOfACumulativeChart) {
  LoadReport report;
  report.is_streamed = true;
  const auto gaps_chart = [&](size_t pieces) {
    LoadRecord record;
    record.status = 200;
    for (size_t i = 0; i < pieces; ++i) record.pieces.push_back(0.1 + static_cast<double>(i) * 0.004);
    record.pieces.push_back(record.pieces.back() + 5);
    record.ended = record.pieces.back();
    const std::string page = report.html({&record, 1});
    const size_t at = page.find("Gaps between pieces of text");
    return page.substr(at, page.find("</svg>", at) - at);
  };
  const std::string many = gaps_chart(500), few = gaps_chart(50);
  EXPECT_NE(many.find(", up to the 99th percentile"), std::string::npos);
  EXPECT_EQ(many.find(">5000<"), std::string::npos) << many;
  EXPECT_EQ(few.find("percentile"), std::string::npos);
  EXPECT_NE(few.find(">5000<"), std::string::npos) << few;
}

TEST(SvgChart, AxesAreRound) {
  EXPECT_DOUBLE_EQ(axis_step(100), 20);
  EXPECT_DOUBLE_EQ(axis_step(101), 50);
  EXPECT_DOUBLE_EQ(axis_step(0.9), 0.2);
  EXPECT_DOUBLE_EQ(axis_step(49), 10);
  EXPECT_DOUBLE_EQ(axis_step(0), 1);
}

}  // namespace
}  // namespace tandem
