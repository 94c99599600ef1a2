#include "cli/svg_chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace tandem {
namespace {

constexpr double kWidth = 760, kHeight = 260, kLeft = 64, kRight = 20, kTop = 46, kBottom = 44;

struct Axis {
  double step = 1;
  int steps = 1;
  double end() const { return step * steps; }
};
Axis axis_of(double largest) {
  Axis axis;
  axis.step = axis_step(largest);
  axis.steps = std::max(1, static_cast<int>(std::ceil(largest / axis.step - 1e-9)));  // five or fewer
  return axis;
}

std::string tick_text(double value) {
  return fmt::format("{:.6g}", value);
}

}  // namespace

std::string markup_escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '&':
        out += "&amp;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

double axis_step(double largest) {
  if (!(largest > 0)) return 1;
  const double least = largest / 5;
  const double power = std::pow(10, std::floor(std::log10(least)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= least * (1 - 1e-9)) return factor * power;
  }
  return 10 * power;
}

std::string svg_chart(const Chart& chart) {
  double most_x = 0, most_y = 0;
  for (const ChartSeries& series : chart.series) {
    for (const auto& [x, y] : series.points) {
      most_x = std::max(most_x, x);
      most_y = std::max(most_y, y);
    }
  }
  const Axis across = axis_of(most_x), up = axis_of(most_y);
  const auto at_x = [&](double x) { return kLeft + (kWidth - kLeft - kRight) * x / across.end(); };
  const auto at_y = [&](double y) { return kHeight - kBottom - (kHeight - kTop - kBottom) * y / up.end(); };

  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" viewBox=\"0 0 {0:.0f} "
      "{1:.0f}\" font-family=\"sans-serif\" font-size=\"12\">\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n<text x=\"10\" y=\"16\" "
      "font-size=\"14\">{2}</text>\n",
      kWidth, kHeight, markup_escaped(chart.title));
  for (int i = 0; i <= across.steps; ++i) {
    const double x = i * across.step;
    svg += fmt::format(
        "<line x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1:.1f}\" y2=\"{2:.1f}\" stroke=\"#ddd\"/>"
        "<text x=\"{0:.1f}\" y=\"{3:.1f}\" text-anchor=\"middle\" fill=\"#555\">{4}</text>\n",
        at_x(x), kTop, kHeight - kBottom, kHeight - kBottom + 15, tick_text(x));
  }
  for (int i = 0; i <= up.steps; ++i) {
    const double y = i * up.step;
    svg += fmt::format(
        "<line x1=\"{0:.1f}\" x2=\"{1:.1f}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\" stroke=\"#ddd\"/>"
        "<text x=\"{3:.1f}\" y=\"{4:.1f}\" text-anchor=\"end\" fill=\"#555\">{5}</text>\n",
        kLeft, kWidth - kRight, at_y(y), kLeft - 6, at_y(y) + 4, tick_text(y));
  }
  svg += fmt::format(
      "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text>\n"
      "<text x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n",
      (kLeft + kWidth - kRight) / 2, kHeight - 10, markup_escaped(chart.x_name), 10.0, kTop - 12,
      markup_escaped(chart.y_name));

  double legend = 200;
  for (size_t i = 0; i < chart.series.size(); ++i) {
    const ChartSeries& series = chart.series[i];
    const char* colour = kChartColours[i % std::size(kChartColours)];
    svg += fmt::format(
        "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4\" fill=\"{}\"/><text x=\"{:.1f}\" "
        "y=\"{:.1f}\">{}</text>\n",
        legend, kTop - 16, colour, legend + 9, kTop - 12, markup_escaped(series.name));
    legend += 30 + 8.0 * static_cast<double>(series.name.size());
    if (chart.dots) {
      for (const auto& [x, y] : series.points)
        svg += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"2.5\" fill=\"{}\" opacity=\"0.6\"/>\n",
                           at_x(x), at_y(y), colour);
      continue;
    }
    svg += fmt::format("<polyline fill=\"none\" stroke=\"{}\" stroke-width=\"1.5\" points=\"", colour);
    for (const auto& [x, y] : series.points) svg += fmt::format("{:.1f},{:.1f} ", at_x(x), at_y(y));
    svg += "\"/>\n";
  }
  return svg + "</svg>\n";
}

}  // namespace tandem
