#include "cli/placement_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "base/memory_budget.h"
#include "cli/deployment.h"

namespace tandem {
namespace {

using Json = nlohmann::ordered_json;

std::string accuracy_text(const ArmAccuracy& accuracy) {
  const Interval interval = wilson_interval(accuracy.correct, accuracy.questions);
  return fmt::format("{} of {} ({:.1f} %, 95 % interval {:.1f} to {:.1f}), {} failed", accuracy.correct,
                     accuracy.questions,
                     100.0 * static_cast<double>(accuracy.correct) /
                         static_cast<double>(std::max<uint64_t>(accuracy.questions, 1)),
                     100 * interval.low, 100 * interval.high, accuracy.failed);
}

std::string accuracy_verdict(const ArmAccuracy& reference, const ArmAccuracy& other) {
  if (reference.questions == other.questions && reference.correct == other.correct)
    return "as many right answers";
  const Interval a = wilson_interval(reference.correct, reference.questions);
  const Interval b = wilson_interval(other.correct, other.questions);
  return a.low <= b.high && b.low <= a.high ? "the intervals overlap: no measurable change"
                                            : "the intervals do not overlap: another accuracy";
}

std::string load_text(const std::array<double, 3>& load) {
  return fmt::format("{:.2f}, {:.2f}, {:.2f}", load[0], load[1], load[2]);
}

void append_environment(const PlacementReport& report, std::string& text) {
  const std::string isa = report.arms.empty() || report.arms.front().ranks.empty()
                              ? "unknown"
                              : report.arms.front().ranks.front().isa;
  text += "## Environment\n\n| | |\n| --- | --- |\n";
  const auto row = [&](const char* key, const std::string& value) {
    text += fmt::format("| {} | {} |\n", key, value);
  };
  row("started", report.started + fmt::format(", took {:.0f} s", report.seconds));
  row("commit", report.build.commit);
  row("build", report.build.version + ", " + report.build.compiler + ", " + report.build.build_type);
  row("CPU", fmt::format("{}, {} cores for this process", report.host.cpu, report.host.cores));
  row("ISA", isa);
  row("governor", report.host.governor);
  row("memory", bytes_text(report.host.memory_bytes) + ", " + bytes_text(report.host.memory_available_bytes) +
                    " available at the start");
  row("kernel", report.host.kernel);
  row("load average at the start", load_text(report.load_begin));
  row("load average at the end", load_text(report.load_end));
  text += fmt::format("\n```\n{}\n```\n\nThe arms, as one would start them by hand:\n\n```\n",
                      report.command_line);
  for (const ArmResult& arm : report.arms) text += fmt::format("{}: {}\n", arm.name, arm.command);
  text += "```\n\n";
}

void append_summary(const PlacementReport& report, std::string& text) {
  const ArmResult& reference = report.arms.front();
  text += fmt::format("## Result\n\nMeans over the runs, compared with `{}`.\n\n", reference.name);
  text += "| metric | " + reference.name + " |";
  std::string rule = "| --- | --- |";
  for (size_t arm = 1; arm < report.arms.size(); ++arm) {
    text += fmt::format(" {} | delta | noise band | verdict |", report.arms[arm].name);
    rule += " --- | --- | --- | --- |";
  }
  text += "\n" + rule + "\n";
  for (const RunMetric& metric : run_metrics()) {
    text += fmt::format("| {} | {:.2f} |", metric.name, spread_of(report.values(reference, metric)).mean);
    for (size_t arm = 1; arm < report.arms.size(); ++arm) {
      const Comparison comparison = report.comparison(arm, metric);
      const std::string band =
          comparison.verdict == Verdict::no_band ? "none" : fmt::format("±{:.2f}", comparison.band);
      text += fmt::format(" {:.2f} | {:+.2f} ({:+.1f} %) | {} | {} |",
                          spread_of(report.values(report.arms[arm], metric)).mean, comparison.delta,
                          100 * comparison.relative, band, verdict_text(comparison));
    }
    text += '\n';
  }
  text += fmt::format("\nFailed requests: {}.\n\n{}\n\n", report.failed_requests(), kBandFormula);
}

void append_runs(const PlacementReport& report, std::string& text) {
  text += "## Runs\n\n" + report.how + "\n\n| run | arm |";
  for (const RunMetric& metric : run_metrics()) text += fmt::format(" {} |", metric.name);
  text += " requests | failed | s |\n| --- | --- |";
  for (size_t i = 0; i < run_metrics().size() + 3; ++i) text += " --- |";
  text += '\n';
  std::vector<size_t> next(report.arms.size(), 0);
  for (size_t number = 0; number < report.order.size(); ++number) {
    for (size_t arm = 0; arm < report.arms.size(); ++arm) {
      if (report.arms[arm].name != report.order[number]) continue;
      const RunMeasure& run = report.arms[arm].runs[next[arm]++].measure;
      text += fmt::format("| {} | {} |", number + 1, report.order[number]);
      for (const RunMetric& metric : run_metrics()) text += fmt::format(" {:.2f} |", run.*metric.value);
      text += fmt::format(" {} | {} | {:.2f} |\n", run.requests, run.failed, run.seconds);
    }
  }
  text += '\n';
}

void append_ranks(const PlacementReport& report, std::string& text) {
  text +=
      "## Waits and routing\n\nAttention: how long a lane could do nothing but wait for the experts, per "
      "reply "
      "collected.\nFFN: how long the compute thread waited for tiles, per group computed. Over all runs.\n\n"
      "| arm | rank | |\n| --- | --- | --- |\n";
  for (const ArmResult& arm : report.arms) {
    for (const RankCounters& rank : rank_totals(arm))
      text += fmt::format("| {} | {} | {} |\n", arm.name, rank.name(), rank_text(rank));
  }
  text += '\n';
}

void append_accuracy(const PlacementReport& report, std::string& text) {
  text += "## Accuracy\n\n";
  if (report.accuracy_data.empty()) {
    text += "Not measured: " + report.no_accuracy + ".\n\n";
    return;
  }
  text += "Of the same ranks, in the same run: " + report.accuracy_data +
          ".\n\n| arm | right | verdict |\n| --- | --- | --- |\n";
  for (const ArmResult& arm : report.arms) {
    if (!arm.accuracy) continue;
    const bool is_reference = &arm == &report.arms.front();
    text += fmt::format("| {} | {} | {} |\n", arm.name, accuracy_text(*arm.accuracy),
                        is_reference || !report.arms.front().accuracy
                            ? "reference"
                            : accuracy_verdict(*report.arms.front().accuracy, *arm.accuracy));
  }
  text += '\n';
}

Json run_json(const ArmRun& run) {
  Json json = {{"seconds", run.measure.seconds},
               {"requests", run.measure.requests},
               {"failed", run.measure.failed},
               {"prompt_tokens", run.measure.prompt_tokens},
               {"output_tokens", run.measure.output_tokens}};
  for (const RunMetric& metric : run_metrics()) json[metric.key] = run.measure.*metric.value;
  json["ranks"] = Json::parse(counters_json(run.ranks));
  return json;
}

const char* verdict_key(Verdict verdict) {
  constexpr std::array<const char*, 4> kKeys = {"no_band", "inside", "better", "worse"};
  return kKeys[static_cast<size_t>(verdict)];
}

Json arm_json(const PlacementReport& report, size_t index) {
  const ArmResult& arm = report.arms[index];
  Json json = {{"name", arm.name}, {"command", arm.command}, {"ranks", Json::parse(rank_json(arm.ranks))}};
  for (const RunMetric& metric : run_metrics()) {
    const Spread spread = spread_of(report.values(arm, metric));
    json["metrics"][metric.key] = {{"mean", spread.mean}, {"deviation", spread.deviation}};
    if (index == 0) continue;
    const Comparison comparison = report.comparison(index, metric);
    Json& against = json["metrics"][metric.key]["against_" + report.arms.front().name];
    against = {{"delta", comparison.delta},
               {"relative", comparison.relative},
               {"verdict", verdict_key(comparison.verdict)},
               {"words", verdict_text(comparison)}};
    if (comparison.verdict != Verdict::no_band) against["band"] = comparison.band;
  }
  json["counters"] = Json::parse(counters_json(rank_totals(arm)));
  if (arm.accuracy) {
    const Interval interval = wilson_interval(arm.accuracy->correct, arm.accuracy->questions);
    json["accuracy"] = {{"questions", arm.accuracy->questions},
                        {"correct", arm.accuracy->correct},
                        {"failed", arm.accuracy->failed},
                        {"interval_95", {interval.low, interval.high}}};
  }
  for (const ArmRun& run : arm.runs) json["runs"].push_back(run_json(run));
  return json;
}

}  // namespace

std::vector<double> PlacementReport::values(const ArmResult& arm, const RunMetric& metric) const {
  std::vector<double> found;
  found.reserve(arm.runs.size());
  for (const ArmRun& run : arm.runs) found.push_back(run.measure.*metric.value);
  return found;
}

Comparison PlacementReport::comparison(size_t arm, const RunMetric& metric) const {
  return compare(spread_of(values(arms.front(), metric)), spread_of(values(arms[arm], metric)),
                 metric.higher_is_better);
}

uint64_t PlacementReport::failed_requests() const {
  uint64_t failed = 0;
  for (const ArmResult& arm : arms) {
    for (const ArmRun& run : arm.runs) failed += run.measure.failed;
    if (arm.accuracy.has_value()) failed += arm.accuracy->failed;
  }
  return failed;
}

std::vector<RankCounters> rank_totals(const ArmResult& arm) {
  std::vector<RankCounters> totals;
  for (const ArmRun& run : arm.runs) {
    for (const RankCounters& rank : run.ranks) {
      const auto same = std::ranges::find_if(totals, [&](const RankCounters& total) {
        return total.role == rank.role && total.rank == rank.rank;
      });
      if (same == totals.end()) {
        totals.push_back(rank);
        continue;
      }
      if (same->missing.empty()) same->missing = rank.missing;
      same->collects += rank.collects;
      same->wait_seconds += rank.wait_seconds;
      same->router_calls += rank.router_calls;
      same->router_seconds += rank.router_seconds;
    }
  }
  return totals;
}

std::string rank_text(const RankCounters& counters) {
  if (!counters.missing.empty()) return "no data: " + counters.missing;
  const auto per = [](double seconds, uint64_t count) { return 1e6 * seconds / static_cast<double>(count); };
  std::string text =
      counters.collects == 0
          ? "no data on waits: it collected nothing"
          : fmt::format("wait {:.1f} us over {} {}", per(counters.wait_seconds, counters.collects),
                        counters.collects, counters.role == "ffn" ? "groups" : "collects");
  if (counters.router_calls > 0)
    return text + fmt::format("; router {:.1f} us over {} calls",
                              per(counters.router_seconds, counters.router_calls), counters.router_calls);
  return text + "; routes nothing";
}

std::string PlacementReport::markdown(const std::string& chart) const {
  std::string text = fmt::format(
      "# Placement: {}\n\n{} {} over {}; profile {} at scale {}: {} requests a run, {} at once, {} tokens "
      "in, {} "
      "out, random token ids from seed {}; at most {} batched tokens and {} sequences.\n\n",
      [&] {
        std::vector<std::string> names;
        names.reserve(arms.size());
        for (const ArmResult& arm : arms) names.push_back(arm.name);
        return fmt::format("{}", fmt::join(names, " against "));
      }(),
      model, shape, transport, profile.name, profile.scale, requests, profile.concurrency,
      profile.input_tokens, profile.output_tokens, seed, profile.max_num_batched_tokens,
      profile.max_num_seqs);
  append_summary(*this, text);
  if (!chart.empty()) text += "![every run of every arm](" + chart + ")\n\n";
  append_ranks(*this, text);
  append_accuracy(*this, text);
  append_runs(*this, text);
  append_environment(*this, text);
  return text;
}

std::string PlacementReport::json() const {
  Json json = {{"model", model},
               {"shape", shape},
               {"transport", transport},
               {"command", command_line},
               {"started", started},
               {"seconds", seconds},
               {"how", how},
               {"profile",
                {{"name", profile.name},
                 {"scale", profile.scale},
                 {"input_tokens", profile.input_tokens},
                 {"output_tokens", profile.output_tokens},
                 {"concurrency", profile.concurrency},
                 {"requests", requests},
                 {"seed", seed},
                 {"max_num_batched_tokens", profile.max_num_batched_tokens},
                 {"max_num_seqs", profile.max_num_seqs},
                 {"capture_sizes", profile.capture_sizes}}},
               {"build",
                {{"version", build.version},
                 {"commit", build.commit},
                 {"compiler", build.compiler},
                 {"type", build.build_type}}},
               {"host",
                {{"cpu", host.cpu},
                 {"cores", host.cores},
                 {"governor", host.governor},
                 {"memory_bytes", host.memory_bytes},
                 {"memory_available_bytes", host.memory_available_bytes},
                 {"kernel", host.kernel},
                 {"load_begin", load_begin},
                 {"load_end", load_end}}},
               {"band", kBandFormula},
               {"failed_requests", failed_requests()},
               {"order", order}};
  if (accuracy_data.empty()) {
    json["no_accuracy"] = no_accuracy;
  } else {
    json["accuracy_data"] = accuracy_data;
  }
  for (size_t arm = 0; arm < arms.size(); ++arm) json["arms"].push_back(arm_json(*this, arm));
  return json.dump(1);
}

}  // namespace tandem
