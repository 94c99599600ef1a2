// Trace files: what Perfetto asks of them, that files of several ranks are joined on one time line, and that
// what is no such file is refused by name. The summary is read back from the file, never from memory.
#include "cli/trace_file.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

namespace tandem {
namespace {

using Json = nlohmann::json;

class TraceFileTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / ("tandem-trace-test-" + std::to_string(::getpid()));
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  static std::string text(const std::string& file) {
    std::stringstream all;
    all << std::ifstream(file).rdbuf();
    return all.str();
  }

  std::filesystem::path folder_;
};

constexpr int64_t kMicro = 1000;

void start(TraceRing& ring) {
  ring.ask();
  EXPECT_TRUE(ring.turn());
}

// Two layers of one lane that asks two ranks, and the engine around it; from `began` on, by the steady clock.
void record(TraceRing& ring, int64_t began) {
  const uint32_t norm = ring.name("attention.norm"), submit = ring.name("moe.submit");
  const int64_t micro = kMicro;
  for (int64_t layer = 0; layer < 2; ++layer) {
    const int64_t at = began + layer * 100 * micro;
    const auto number = static_cast<uint16_t>(layer);
    ring.add({.begin_ns = at, .end_ns = at + 10 * micro, .name = norm, .layer = number});
    ring.add({.begin_ns = at + 10 * micro, .end_ns = at + 15 * micro, .name = submit, .layer = number});
    const auto answer = [&](TraceKind kind, uint16_t rank, int64_t arrived, uint32_t queue,
                            uint32_t compute) {
      ring.add({.begin_ns = at + 11 * micro,
                .end_ns = at + arrived * micro + 1,
                .arrived_ns = at + arrived * micro,
                .queue_us = queue,
                .compute_us = compute,
                .exchange_us = 3,
                .residence_us = queue + compute + 3,
                .layer = number,
                .rank = rank,
                .kind = kind});
    };
    answer(TraceKind::reply, 1, 61, 0, 30);
    answer(TraceKind::reply, 0, 91, 5, 50);
    answer(TraceKind::exchange, 0, 91, 5, 50);
  }
  ring.add({.begin_ns = began, .end_ns = began + 200 * micro, .rows = 4, .kind = TraceKind::step});
  ring.add({.begin_ns = began, .end_ns = began + 201 * micro, .kind = TraceKind::loop});
}

// What a viewer relies on: metadata for every process and thread, and on each thread spans that begin in
// order and lie inside each other or beside each other.
void expect_well_formed(const Json& document) {
  std::set<int64_t> processes;
  std::set<std::pair<int64_t, int64_t>> threads;
  std::map<std::pair<int64_t, int64_t>, std::vector<std::pair<double, double>>> open;  // [begin, end)
  std::map<std::pair<int64_t, int64_t>, double> last;
  for (const Json& event : document.at("traceEvents")) {
    const auto process = event.at("pid").get<int64_t>();
    if (event.at("ph") == "M") {
      if (event.at("name") == "process_name") processes.insert(process);
      if (event.at("name") == "thread_name") threads.insert({process, event.at("tid").get<int64_t>()});
      continue;
    }
    ASSERT_EQ(event.at("ph"), "X");
    EXPECT_FALSE(event.at("name").get<std::string>().empty());
    EXPECT_TRUE(event.at("args").is_object());
    const std::pair thread(process, event.at("tid").get<int64_t>());
    EXPECT_TRUE(processes.contains(process)) << event;
    EXPECT_TRUE(threads.contains(thread)) << event;
    const double begin = event.at("ts").get<double>(), end = begin + event.at("dur").get<double>();
    EXPECT_GE(end, begin);
    if (last.contains(thread)) {
      EXPECT_GE(begin, last[thread]) << event;
    }
    last[thread] = begin;
    constexpr double kNanosecond = 1.5e-3;  // what sums of microseconds with three decimals may be off by
    auto& stack = open[thread];
    while (!stack.empty() && stack.back().second <= begin + kNanosecond) stack.pop_back();
    if (!stack.empty()) {
      EXPECT_LE(end, stack.back().second + kNanosecond) << event << " reaches out of the span around it";
    }
    stack.emplace_back(begin, end);
  }
}

TEST_F(TraceFileTest, IsWhatPerfettoLoads) {
  TraceRing ring(1000);
  start(ring);
  record(ring, ring.started_ns() + 500 * kMicro);
  ASSERT_TRUE(write_trace(path("a"), ring, {"attention", 0}));
  const Json document = Json::parse(text(path("a")));
  expect_well_formed(document);
  std::map<std::string, std::vector<Json>> spans;
  for (const Json& event : document.at("traceEvents")) {
    if (event.at("ph") == "X") spans[event.at("name")].push_back(event);
  }
  ASSERT_EQ(spans["decode step"].size(), 1u);
  EXPECT_EQ(spans["decode step"][0].at("ts"), 500.0);
  EXPECT_EQ(spans["decode step"][0].at("dur"), 200.0);
  EXPECT_EQ(spans["attention.norm"].size(), 2u);
  // From the last operation until the lane saw the answer.
  ASSERT_EQ(spans["wait"].size(), 2u);
  EXPECT_EQ(spans["wait"][1].at("ts"), 615.0);
  EXPECT_EQ(spans["wait"][1].at("dur"), 76.001);
  // The rank that answered last: a round trip of 80, of which it had the rows for 58: in the middle.
  ASSERT_EQ(spans["layer 0"].size(), 2u);
  const Json& slow = spans["layer 0"][0].at("pid") == 10001 ? spans["layer 0"][0] : spans["layer 0"][1];
  EXPECT_EQ(slow.at("pid"), 10001);
  EXPECT_EQ(slow.at("ts"), 511.0 + 11);
  EXPECT_EQ(slow.at("dur"), 58.0);
  EXPECT_EQ(slow.at("args").at("round_trip_us"), 80.0);
  ASSERT_EQ(spans["experts"].size(), 4u);
  EXPECT_EQ(spans["queue"].size(), 2u) << "none of length 0";
}

TEST_F(TraceFileTest, JoinsRanksOnTheirHostsClocksAndKeepsTheirTimes) {
  TraceRing first(1000), second(1000);
  start(first);
  record(first, first.started_ns());
  start(second);
  record(second, first.started_ns() + 50 * kMicro);
  ASSERT_TRUE(write_trace(path("a.attention0"), first, {"attention", 0}));
  ASSERT_TRUE(write_trace(path("a.attention1"), second, {"attention", 1}));
  ASSERT_TRUE(join_traces({path("a.attention0"), path("a.attention1")}, path("a")));
  const Json document = Json::parse(text(path("a")));
  expect_well_formed(document);
  std::vector<double> begins;
  for (const Json& event : document.at("traceEvents")) {
    if (event.at("name") == "decode step") begins.push_back(event.at("ts").get<double>());
  }
  ASSERT_EQ(begins.size(), 2u);
  EXPECT_EQ(begins[0], 0.0);
  // As far as a process can read two clocks at once.
  EXPECT_NEAR(begins[1], 50.0, 1000.0);

  const auto times = read_dead_times(path("a"));
  ASSERT_TRUE(times) << times.error().message;
  const Json ranks = Json::parse(*times);
  ASSERT_EQ(ranks.size(), 2u);
  for (const Json& rank : ranks) {
    EXPECT_EQ(rank.at("wall_ns"), 200 * kMicro);
    int64_t sum = 0;
    for (const auto& [part, nanoseconds] : rank.at("parts").items()) sum += nanoseconds.get<int64_t>();
    EXPECT_EQ(sum, 200 * kMicro);
    EXPECT_EQ(rank.at("parts").at("experts_ns"), 2 * 50 * kMicro);
    ASSERT_EQ(rank.at("answers").size(), 4u);
  }
  const auto tables = dead_time_tables(*times);
  ASSERT_TRUE(tables) << tables.error().message;
  EXPECT_NE(tables->find("attention 1: 0.20 ms"), std::string::npos) << *tables;
  EXPECT_NE(tables->find("FFN rank 1"), std::string::npos);
  EXPECT_EQ(tables->find("unknown: events are missing"), std::string::npos);
}

// Of a ring that goes on: what came before the window is not in it, and a step that began before counts from
// the window's begin on.
TEST_F(TraceFileTest, AWindowIsAFileOfItsOwn) {
  TraceRing ring(1000);
  start(ring);
  record(ring, ring.started_ns());
  const int64_t second = ring.started_ns() + 1000 * kMicro;
  record(ring, second);
  const TraceWindow window = ring.window(second + 50 * kMicro);
  std::ofstream(path("a")) << trace_text(ring, window, {"attention", 3});
  expect_well_formed(Json::parse(text(path("a"))));
  const Json rank = Json::parse(*read_dead_times(path("a"))).at(0);
  EXPECT_EQ(rank.at("wall_ns"), 150 * kMicro);
  EXPECT_EQ(rank.at("dropped_events"), 0) << "they are of another time";
  int64_t sum = 0;
  for (const auto& [part, nanoseconds] : rank.at("parts").items()) sum += nanoseconds.get<int64_t>();
  EXPECT_EQ(sum, 150 * kMicro);
  EXPECT_EQ(rank.at("exchanges"), 1) << "the other one was out when the window began";
  for (const Json& event : Json::parse(text(path("a"))).at("traceEvents")) {
    if (event.at("ph") == "X") {
      EXPECT_GE(event.at("ts").get<double>(), 0) << event;
    }
  }
}

// Beside what attention says of it.
TEST_F(TraceFileTest, AnFfnRanksOwnRecordIsAProcessOfItsOwn) {
  TraceRing attention(1000), ffn(1000);
  start(attention);
  record(attention, attention.started_ns());
  start(ffn);
  const int64_t began = ffn.started_ns();
  const auto add = [&](TraceKind kind, int64_t begin, int64_t end, uint16_t layer, uint8_t row_class) {
    ffn.add({.begin_ns = began + begin * kMicro,
             .end_ns = began + end * kMicro,
             .rows = 8,
             .layer = layer,
             .lane = 2,
             .rank = static_cast<uint16_t>(kind == TraceKind::call ? 1 : 0),
             .kind = kind,
             .row_class = row_class});
  };
  add(TraceKind::wait, 0, 10, 0, 0);
  add(TraceKind::call, 30, 40, 1, 0);  // of decode rows, inside the prompt's
  add(TraceKind::call, 20, 60, 0, 2);
  ASSERT_TRUE(write_trace(path("a.0"), attention, {"attention", 0}));
  ASSERT_TRUE(write_trace(path("a.1"), ffn, {"ffn", 0}));
  ASSERT_TRUE(join_traces({path("a.0"), path("a.1")}, path("a")));
  const Json document = Json::parse(text(path("a")));
  expect_well_formed(document);
  std::vector<std::string> own;
  for (const Json& event : document.at("traceEvents")) {
    if (event.at("ph") == "X" && event.at("pid") == 20001) own.push_back(event.at("name"));
  }
  EXPECT_EQ(own, (std::vector<std::string>{"idle", "layer 0 prefill", "layer 1 decode"}));
  const auto times = read_dead_times(path("a"));
  const Json rank = Json::parse(*times).at(1);
  EXPECT_EQ(rank.at("wall_ns"), 60 * kMicro);
  EXPECT_EQ(rank.at("parts").at("prefill_ns"), 30 * kMicro);
  EXPECT_EQ(rank.at("parts").at("decode_ns"), 10 * kMicro);
  EXPECT_EQ(rank.at("parts").at("between_ns"), 10 * kMicro);
  const auto tables = dead_time_tables(*times);
  ASSERT_TRUE(tables) << tables.error().message;
  EXPECT_NE(tables->find("\nFFN 0: 0.06 ms"), std::string::npos) << *tables;
  EXPECT_NE(tables->find(
                "layer 1                     0.01   100.0 %         -   1 calls of 8.0 rows, 1.00 clients"),
            std::string::npos)
      << *tables;
}

TEST_F(TraceFileTest, DroppedEventsAreSaid) {
  TraceRing ring(8);
  start(ring);
  for (int64_t i = 0; i < 4; ++i) record(ring, ring.started_ns() + i * 300 * kMicro);
  ASSERT_TRUE(write_trace(path("a"), ring, {"attention", 0}));
  expect_well_formed(Json::parse(text(path("a"))));
  const std::string times = *read_dead_times(path("a"));
  EXPECT_EQ(Json::parse(times).at(0).at("dropped_events"), 4 * 12 - 8);
  EXPECT_NE(dead_time_tables(times)->find("40 older events did not fit"), std::string::npos);
}

TEST_F(TraceFileTest, WhatIsNoTraceIsRefusedByName) {
  EXPECT_NE(read_dead_times(path("none")).error().message.find("cannot open the trace " + path("none")),
            std::string::npos);
  TraceRing ring(100);
  start(ring);
  record(ring, ring.started_ns());
  ASSERT_TRUE(write_trace(path("a"), ring, {"attention", 0}));
  const std::string whole = text(path("a"));
  std::ofstream(path("half")) << whole.substr(0, whole.size() / 2);
  std::ofstream(path("short")) << whole.substr(0, whole.size() - 20);
  std::ofstream(path("other")) << "{\"traceEvents\":[]}\n";
  for (const char* name : {"half", "short", "other"}) {
    const auto read = read_dead_times(path(name));
    ASSERT_FALSE(read) << name;
    EXPECT_EQ(read.error().message, path(name) + " is not a trace that tandem wrote to its end");
    EXPECT_FALSE(join_traces({path("a"), path(name)}, path("joined")));
  }
  EXPECT_FALSE(write_trace(path("no/such/folder"), ring, {"attention", 0}));
  EXPECT_EQ(dead_time_tables("[{}]").error().message, "the trace's dead times are not as tandem writes them");
}

}  // namespace
}  // namespace tandem
