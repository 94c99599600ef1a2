#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "cli/load/load_report.h"
#include "cli/svg_chart.h"

namespace tandem {
namespace {

// Points of a line: more than the pixels of a chart nobody sees.
constexpr size_t kMaxPoints = 400;

// Of more values than this the longest hundredth is left out: a few of them would have the whole axis, and
// the table says what they were.
constexpr size_t kFewValues = 100;

// Which share of the values is at most x.
std::string times_chart(std::string title, const char* name, std::vector<double> values) {
  std::ranges::sort(values);
  const size_t count = values.size(), shown = count > kFewValues ? (count * 99 + 99) / 100 : count;
  ChartSeries series{name, {}};
  const auto add = [&](size_t i) {
    series.points.emplace_back(values[i], 100.0 * static_cast<double>(i + 1) / static_cast<double>(count));
  };
  for (size_t i = 0; i < shown; i += std::max<size_t>(1, count / kMaxPoints)) add(i);
  if (shown > 0) add(shown - 1);
  if (shown < count) title += ", up to the 99th percentile";
  return svg_chart({std::move(title), "ms", "% of them", false, {std::move(series)}});
}

// Pieces of text in each slice of the run, as pieces a second.
ChartSeries pieces_over_time(std::span<const LoadRecord> records, double seconds) {
  ChartSeries series{"pieces of text / s", {}};
  const double slice = std::max(seconds / 100, 0.05);
  std::vector<double> counts(static_cast<size_t>(std::ceil(seconds / slice)) + 1, 0);
  for (const LoadRecord& record : records) {
    for (const double at : record.pieces)
      counts[std::min(static_cast<size_t>(at / slice), counts.size() - 1)] += 1;
  }
  for (size_t i = 0; i < counts.size(); ++i)
    series.points.emplace_back((static_cast<double>(i) + 0.5) * slice, counts[i] / slice);
  return series;
}

std::string table_row(const std::string& name, const std::string& value) {
  return "<tr><th>" + markup_escaped(name) + "</th><td>" + markup_escaped(value) + "</td></tr>\n";
}

}  // namespace

std::string LoadReport::html(std::span<const LoadRecord> records) const {
  std::vector<double> ttft, gaps, e2el;
  ChartSeries first{"TTFT", {}}, whole{"E2E", {}};
  double seconds = 0;
  for (const LoadRecord& record : records) {
    seconds = std::max(seconds, record.ended);
    if (!record.ok()) continue;
    e2el.push_back(record.end_to_end() * 1000);
    whole.points.emplace_back(record.sent, e2el.back());
    if (const auto value = record.time_to_first_token()) {
      ttft.push_back(*value * 1000);
      first.points.emplace_back(record.sent, ttft.back());
    }
    for (size_t i = 1; i < record.pieces.size(); ++i)
      gaps.push_back((record.pieces[i] - record.pieces[i - 1]) * 1000);
  }
  std::string page = fmt::format(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>tandem bench "
      "serving</title>\n<style>"
      "body{{font-family:sans-serif;max-width:60em;margin:2em auto}}th{{text-align:left;padding-right:2em;"
      "font-weight:normal;color:#555}}pre{{background:#f4f4f4;padding:1em;overflow:auto}}svg{{display:block;"
      "margin:1.5em 0}}</style></head><body>\n<h1>tandem bench serving</h1>\n<table>\n{}{}{}",
      table_row("server", url + path), table_row("model", model), table_row("started", started));
  for (const auto& [name, value] : load) page += table_row(name, value);
  page += "</table>\n<pre>" + markup_escaped(text()) + "</pre>\n";

  if (is_streamed) page += times_chart("Time to first token", "TTFT", ttft);
  if (is_streamed) page += times_chart("Gaps between pieces of text", "ITL", gaps);
  page += times_chart("Whole requests", "E2E", e2el);
  ChartSeries flight{"requests in flight", in_flight_over_time(records)};
  page += svg_chart({"Requests in flight", "s since the beginning", "requests", false, {flight}});
  if (is_streamed)
    page += svg_chart(
        {"Output", "s since the beginning", "pieces / s", false, {pieces_over_time(records, seconds)}});
  std::vector<ChartSeries> requests;
  if (is_streamed) requests.push_back(first);
  requests.push_back(whole);
  page += svg_chart({"Each request, by when it was sent", "s since the beginning", "ms", true, requests});
  return page + "</body></html>\n";
}

}  // namespace tandem
