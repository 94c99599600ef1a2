// PlacementReport: what `tandem bench placement` measured: as Markdown for people, as JSON for programs, as
// an SVG chart. A value.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "cli/bench_statistics.h"
#include "cli/build_info.h"
#include "cli/host_facts.h"
#include "cli/load_profile.h"
#include "cli/placement_arm.h"

namespace tandem {

struct ArmResult {
  std::string name;
  std::string command;
  std::vector<RankFacts> ranks;
  std::vector<ArmRun> runs;
  std::optional<ArmAccuracy> accuracy;
};

struct PlacementReport {
  std::string model, shape, transport;  // "1A1F", "shm"
  std::string command_line;             // that made the report
  std::string started;                  // UTC
  std::string how;                      // how the arms were run beside each other, in a sentence
  LoadProfile profile;
  int64_t requests = 0;  // of a run
  uint64_t seed = 0;
  BuildInfo build;
  HostFacts host;
  std::array<double, 3> load_begin{}, load_end{};
  double seconds = 0;
  std::string accuracy_data;       // file and limit; empty: none
  std::string no_accuracy;         // why there is none
  std::vector<std::string> order;  // names of the arms, run by run
  std::vector<ArmResult> arms;     // the first is what the others are compared with

  // Of one metric, over an arm's runs.
  std::vector<double> values(const ArmResult& arm, const RunMetric& metric) const;
  Comparison comparison(size_t arm, const RunMetric& metric) const;
  uint64_t failed_requests() const;  // of the load and of the questions

  // `chart`: the name of the SVG file to link; empty: none.
  std::string markdown(const std::string& chart) const;
  std::string json() const;
};

// Sums over the runs: where a rank has no data in one of them, it has none.
std::vector<RankCounters> rank_totals(const ArmResult& arm);
// "12.3 us over 480 collects; router 4.1 us over 480 calls", or why there is none.
std::string rank_text(const RankCounters& counters);

// Every run of every arm as a dot, per metric, in percent of the first arm's mean; the band is shaded.
std::string placement_chart(const PlacementReport& report);

}  // namespace tandem
