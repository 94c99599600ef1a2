#include "cli/load/metrics.h"

#include <algorithm>
#include <charconv>
#include <cmath>

namespace tandem {
namespace {

constexpr double kMs = 1000;

const char* const kMetrics[] = {"ttft", "tpot", "itl", "e2el"};

std::optional<double> value_of(const LoadRecord& record, const std::string& metric) {
  if (metric == "ttft") return record.time_to_first_token();
  if (metric == "tpot") return record.time_per_output_token();
  if (metric == "itl") return record.mean_gap();
  return record.end_to_end();
}

bool parse_number(std::string_view text, double& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && std::isfinite(value);
}

}  // namespace

std::optional<double> LoadRecord::time_to_first_token() const {
  if (pieces.empty()) return std::nullopt;
  return pieces.front() - sent;
}

std::optional<double> LoadRecord::time_per_output_token() const {
  if (pieces.empty() || output_tokens < 2) return std::nullopt;
  return (pieces.back() - pieces.front()) / static_cast<double>(output_tokens - 1);
}

std::optional<double> LoadRecord::mean_gap() const {
  if (pieces.size() < 2) return std::nullopt;
  return (pieces.back() - pieces.front()) / static_cast<double>(pieces.size() - 1);
}

Distribution distribution_of(std::vector<double> values, std::span<const double> percentiles) {
  Distribution out;
  out.at.assign(percentiles.size(), 0);
  out.count = values.size();
  if (values.empty()) return out;
  std::ranges::sort(values);
  const auto count = static_cast<double>(values.size());
  for (const double value : values) out.mean += value / count;
  for (const double value : values) out.deviation += (value - out.mean) * (value - out.mean) / count;
  out.deviation = std::sqrt(out.deviation);
  out.least = values.front();
  out.most = values.back();
  for (size_t i = 0; i < percentiles.size(); ++i) {
    const double position = percentiles[i] / 100 * (count - 1);
    const auto below = static_cast<size_t>(position);
    const size_t above = std::min(below + 1, values.size() - 1);
    out.at[i] = values[below] + (position - static_cast<double>(below)) * (values[above] - values[below]);
  }
  return out;
}

Result<std::vector<Objective>> parse_goodput(std::span<const std::string> texts) {
  std::vector<Objective> objectives;
  for (const std::string& text : texts) {
    const auto refuse = [&](const std::string& why) {
      return make_error(ErrorCode::invalid_argument,
                        "load.goodput: '" + text + "' " + why +
                            "; use ttft, tpot, itl or e2el with milliseconds, as in ttft:500");
    };
    const size_t colon = text.find(':');
    if (colon == std::string::npos) return refuse("has no limit");
    Objective objective{text.substr(0, colon), 0};
    if (objective.metric == "e2e") objective.metric = "e2el";
    if (std::ranges::find(kMetrics, objective.metric) == std::end(kMetrics)) return refuse("names no metric");
    if (!parse_number(std::string_view(text).substr(colon + 1), objective.limit_ms) ||
        objective.limit_ms <= 0)
      return refuse("has no limit above 0");
    if (std::ranges::find(objectives, objective.metric, &Objective::metric) != objectives.end())
      return refuse("is the second limit of its metric");
    objectives.push_back(objective);
  }
  return objectives;
}

bool is_good(const LoadRecord& record, std::span<const Objective> objectives) {
  if (!record.ok()) return false;
  return std::ranges::all_of(objectives, [&](const Objective& objective) {
    const std::optional<double> value = value_of(record, objective.metric);
    return !value || *value * kMs <= objective.limit_ms;
  });
}

Result<std::vector<double>> parse_percentiles(std::span<const std::string> texts) {
  std::vector<double> percentiles;
  for (const std::string& text : texts) {
    double value = 0;
    if (!parse_number(text, value) || value <= 0 || value >= 100 ||
        (!percentiles.empty() && value <= percentiles.back()))
      return make_error(ErrorCode::invalid_argument,
                        "load.metric_percentiles: '" + text +
                            "' is not a number between 0 and 100, ascending; use 50,90,95,99");
    percentiles.push_back(value);
  }
  return percentiles;
}

std::vector<std::pair<double, double>> in_flight_over_time(std::span<const LoadRecord> records) {
  std::vector<std::pair<double, int>> changes;
  for (const LoadRecord& record : records) {
    changes.emplace_back(record.sent, 1);
    changes.emplace_back(record.ended, -1);
  }
  std::ranges::sort(changes);  // an end before a start at the same instant: they did not overlap
  std::vector<std::pair<double, double>> out;
  double number = 0;
  for (const auto& [at, change] : changes) {
    out.emplace_back(at, number);
    number += change;
    out.emplace_back(at, number);
  }
  return out;
}

LoadSummary summarize(std::span<const LoadRecord> records, std::vector<double> percentiles,
                      std::vector<Objective> objectives) {
  LoadSummary summary;
  summary.percentiles = std::move(percentiles);
  summary.objectives = std::move(objectives);
  std::vector<double> ttft, tpot, itl, e2el, delay;
  double first = 0, last = 0;
  for (size_t i = 0; i < records.size(); ++i) {
    const LoadRecord& record = records[i];
    first = i == 0 ? record.sent : std::min(first, record.sent);
    last = std::max(last, record.ended);
    delay.push_back((record.sent - record.due) * kMs);
    if (!record.ok()) {
      ++summary.failed;
      const std::string kind = record.status == 0     ? "no reply"
                               : record.status == 200 ? "200, then an error"
                                                      : std::to_string(record.status);
      ++summary.failures[kind];
      summary.failure_examples.try_emplace(kind, record.error);
      continue;
    }
    ++summary.completed;
    if (is_good(record, summary.objectives)) ++summary.good;
    summary.input_tokens += record.input_tokens;
    summary.cached_tokens += record.cached_tokens;
    summary.output_tokens += record.output_tokens;
    e2el.push_back(record.end_to_end() * kMs);
    if (const auto value = record.time_to_first_token()) ttft.push_back(*value * kMs);
    if (const auto value = record.time_per_output_token()) tpot.push_back(*value * kMs);
    for (size_t piece = 1; piece < record.pieces.size(); ++piece)
      itl.push_back((record.pieces[piece] - record.pieces[piece - 1]) * kMs);
  }
  summary.seconds = last - first;
  for (const auto& [at, number] : in_flight_over_time(records))
    summary.most_in_flight = std::max(summary.most_in_flight, static_cast<uint64_t>(number));
  summary.ttft = distribution_of(std::move(ttft), summary.percentiles);
  summary.tpot = distribution_of(std::move(tpot), summary.percentiles);
  summary.itl = distribution_of(std::move(itl), summary.percentiles);
  summary.e2el = distribution_of(std::move(e2el), summary.percentiles);
  summary.send_delay = distribution_of(std::move(delay), summary.percentiles);
  return summary;
}

}  // namespace tandem
