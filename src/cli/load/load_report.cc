#include "cli/load/load_report.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace tandem {
namespace {

using Json = nlohmann::ordered_json;

struct Row {
  const char* key;
  const char* name;
  const Distribution& values;
};

// What was measured; without a stream there are no times of tokens.
std::vector<Row> rows_of(const LoadReport& report) {
  const LoadSummary& summary = report.summary;
  std::vector<Row> rows;
  if (report.is_streamed) {
    rows.push_back({"ttft_ms", "TTFT", summary.ttft});
    rows.push_back({"tpot_ms", "TPOT", summary.tpot});
    rows.push_back({"itl_ms", "ITL", summary.itl});
  }
  rows.push_back({"e2el_ms", "E2E", summary.e2el});
  if (report.has_rate) rows.push_back({"send_delay_ms", "send delay", summary.send_delay});
  return rows;
}

std::string percentile_name(double percentile) {
  return fmt::format("p{:g}", percentile);
}

double three_digits(double value) {
  return std::stod(fmt::format("{:.3f}", value));
}

std::string objectives_text(const LoadSummary& summary) {
  std::string text;
  for (const Objective& objective : summary.objectives)
    text += fmt::format("{}{} <= {:g} ms", text.empty() ? "" : ", ", objective.metric, objective.limit_ms);
  return text;
}

}  // namespace

std::string LoadReport::text() const {
  const LoadSummary& s = summary;
  std::string out = fmt::format("{}{}, model {}\n", url, path, model);
  const auto line = [&](const char* name, const std::string& value) {
    out += fmt::format("{:<28}{}\n", name, value);
  };
  line("requests", fmt::format("{} completed, {} failed, in {:.2f} s", s.completed, s.failed, s.seconds));
  for (const auto& [kind, count] : s.failures)
    line(("  " + kind).c_str(), fmt::format("{}: {}", count, s.failure_examples.at(kind)));
  line("input tokens", fmt::format("{}, {} of them cached", s.input_tokens, s.cached_tokens));
  line("output tokens", std::to_string(s.output_tokens));
  line("request throughput",
       fmt::format("{:.2f} requests/s", s.per_second(static_cast<double>(s.completed))));
  if (!s.objectives.empty())
    line("goodput", fmt::format("{:.2f} requests/s, {} of {} requests within {}",
                                s.per_second(static_cast<double>(s.good)), s.good, s.completed + s.failed,
                                objectives_text(s)));
  line("output throughput",
       fmt::format("{:.1f} tokens/s", s.per_second(static_cast<double>(s.output_tokens))));
  line("total throughput",
       fmt::format("{:.1f} tokens/s", s.per_second(static_cast<double>(s.input_tokens + s.output_tokens))));
  line("most in flight", std::to_string(s.most_in_flight));
  out += fmt::format("\n{:<12}{:>11}", "ms", "mean");
  for (const double percentile : s.percentiles) out += fmt::format("{:>11}", percentile_name(percentile));
  out += fmt::format("{:>11}\n", "max");
  for (const Row& row : rows_of(*this)) {
    out += fmt::format("{:<12}{:>11.2f}", row.name, row.values.mean);
    for (const double value : row.values.at) out += fmt::format("{:>11.2f}", value);
    out += fmt::format("{:>11.2f}\n", row.values.most);
  }
  return out;
}

std::string LoadReport::json() const {
  const LoadSummary& s = summary;
  Json document = {{"url", url}, {"endpoint", path}, {"model", model}, {"started", started}};
  for (const auto& [name, value] : load) document["load"][name] = value;
  document["completed"] = s.completed;
  document["failed"] = s.failed;
  document["failures"] = Json::object();
  for (const auto& [kind, count] : s.failures)
    document["failures"][kind] = {{"count", count}, {"example", s.failure_examples.at(kind)}};
  document["duration_s"] = three_digits(s.seconds);
  document["input_tokens"] = s.input_tokens;
  document["cached_tokens"] = s.cached_tokens;
  document["output_tokens"] = s.output_tokens;
  document["request_throughput"] = three_digits(s.per_second(static_cast<double>(s.completed)));
  document["output_throughput"] = three_digits(s.per_second(static_cast<double>(s.output_tokens)));
  document["total_token_throughput"] =
      three_digits(s.per_second(static_cast<double>(s.input_tokens + s.output_tokens)));
  document["most_in_flight"] = s.most_in_flight;
  if (!s.objectives.empty()) {
    Json limits = Json::object();
    for (const Objective& objective : s.objectives) limits[objective.metric] = objective.limit_ms;
    document["goodput"] = {{"limits_ms", limits},
                           {"good_requests", s.good},
                           {"requests_per_s", three_digits(s.per_second(static_cast<double>(s.good)))}};
  }
  for (const Row& row : rows_of(*this)) {
    const Distribution& values = row.values;
    Json entry = {{"count", values.count},
                  {"mean", three_digits(values.mean)},
                  {"std", three_digits(values.deviation)},
                  {"min", three_digits(values.least)},
                  {"max", three_digits(values.most)}};
    for (size_t i = 0; i < values.at.size(); ++i)
      entry[percentile_name(s.percentiles[i])] = three_digits(values.at[i]);
    document[row.key] = entry;
  }
  return document.dump();
}

std::string record_line(const LoadRecord& record) {
  Json line = {{"index", record.index},
               {"due_s", record.due},
               {"sent_s", record.sent},
               {"ended_s", record.ended},
               {"status", record.status},
               {"error", record.error},
               {"input_tokens", record.input_tokens},
               {"cached_tokens", record.cached_tokens},
               {"output_tokens", record.output_tokens}};
  line["ttft_s"] = nullptr;
  if (const auto ttft = record.time_to_first_token()) line["ttft_s"] = *ttft;
  line["gaps_s"] = Json::array();
  for (size_t i = 1; i < record.pieces.size(); ++i)
    line["gaps_s"].push_back(record.pieces[i] - record.pieces[i - 1]);
  return line.dump();
}

}  // namespace tandem
