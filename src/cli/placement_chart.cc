#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "cli/placement_report.h"
#include "cli/svg_chart.h"

namespace tandem {
namespace {

constexpr double kLeft = 150, kRight = 40, kWidth = 760, kTop = 60, kLane = 18, kGap = 16;

}  // namespace

std::string placement_chart(const PlacementReport& report) {
  const auto metrics = run_metrics();
  // The widest thing to show, in percent of the reference: dots and bands, and never a flat line of 0.
  double reach = 1;
  const auto percent = [&](const RunMetric& metric, double value) {
    const double mean = spread_of(report.values(report.arms.front(), metric)).mean;
    return mean == 0 ? 0 : 100 * (value / mean - 1);
  };
  for (const RunMetric& metric : metrics) {
    for (size_t arm = 0; arm < report.arms.size(); ++arm) {
      for (const double value : report.values(report.arms[arm], metric))
        reach = std::max(reach, std::abs(percent(metric, value)));
    }
  }
  reach *= 1.1;
  const double plot = kWidth - kLeft - kRight;
  const auto x = [&](double at) {
    return kLeft + plot * (std::clamp(at, -reach, reach) + reach) / (2 * reach);
  };
  const double group = kLane * static_cast<double>(report.arms.size()) + kGap;
  const double height = kTop + group * static_cast<double>(metrics.size()) + 40;

  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" viewBox=\"0 0 {0:.0f} "
      "{1:.0f}\" "
      "font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
      "<text x=\"{2}\" y=\"20\" font-size=\"14\">{3}: each run, in percent of the mean of {4}</text>\n",
      kWidth, height, 10,
      markup_escaped(report.profile.name + " on " + report.shape + " over " + report.transport),
      markup_escaped(report.arms.front().name));
  for (size_t arm = 0; arm < report.arms.size(); ++arm) {
    const double at = 16 + 130.0 * static_cast<double>(arm);
    svg += fmt::format(
        "<circle cx=\"{:.1f}\" cy=\"38\" r=\"4\" fill=\"{}\"/><text x=\"{:.1f}\" y=\"42\">{}</text>\n", at,
        kChartColours[arm % std::size(kChartColours)], at + 10, markup_escaped(report.arms[arm].name));
  }
  for (size_t m = 0; m < metrics.size(); ++m) {
    const double top = kTop + group * static_cast<double>(m);
    svg += fmt::format("<text x=\"10\" y=\"{:.1f}\">{}</text>\n", top + kLane * 0.5 + 4, metrics[m].name);
    for (size_t arm = 0; arm < report.arms.size(); ++arm) {
      const double y = top + kLane * (static_cast<double>(arm) + 0.5);
      const char* colour = kChartColours[arm % std::size(kChartColours)];
      const double mean = spread_of(report.values(report.arms.front(), metrics[m])).mean;
      if (arm > 0 && mean != 0) {
        const double band = 100 * report.comparison(arm, metrics[m]).band / mean;
        svg += fmt::format(
            "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"#000\" "
            "opacity=\"0.08\"/>\n",
            x(-band), y - kLane / 2 + 2, x(band) - x(-band), kLane - 4);
      }
      for (const double value : report.values(report.arms[arm], metrics[m])) {
        svg += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\" fill=\"{}\" opacity=\"0.55\"/>\n",
                           x(percent(metrics[m], value)), y, colour);
      }
      const double at = x(percent(metrics[m], spread_of(report.values(report.arms[arm], metrics[m])).mean));
      svg += fmt::format(
          "<line x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1:.1f}\" y2=\"{2:.1f}\" stroke=\"{3}\" "
          "stroke-width=\"2\"/>\n",
          at, y - 7, y + 7, colour);
    }
  }
  const double bottom = height - 26;
  for (const double tick : {-reach, -reach / 2, 0.0, reach / 2, reach}) {
    svg += fmt::format(
        "<line x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1}\" y2=\"{2:.1f}\" stroke=\"#999\" stroke-width=\"0.5\"/>"
        "<text x=\"{0:.1f}\" y=\"{3:.1f}\" text-anchor=\"middle\" fill=\"#555\">{4:+.1f} %</text>\n",
        x(tick), kTop - 6, bottom - 8, bottom + 8, tick);
  }
  return svg + "</svg>\n";
}

}  // namespace tandem
