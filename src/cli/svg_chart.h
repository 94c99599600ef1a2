// Charts as SVG text, without scripts: lines or dots over two linear axes. Values in, text out.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tandem {

// Text that may stand between tags and in attributes, of SVG and of HTML.
std::string markup_escaped(std::string_view text);

// Far from each other in hue and in lightness, so that they differ in print, too.
inline constexpr const char* kChartColours[] = {"#1b6ca8", "#d1495b", "#3a7d44", "#8d6a9f"};

struct ChartSeries {
  std::string name;
  std::vector<std::pair<double, double>> points;
};

struct Chart {
  std::string title, x_name, y_name;
  bool dots = false;  // else each series is a line through its points in their order
  std::vector<ChartSeries> series;
};

// An <svg> element of 760 x 260. Axes begin at 0 and end at a round number above the largest value.
std::string svg_chart(const Chart& chart);

// The round number (1, 2 or 5 times a power of ten) at or above a fifth of `largest`: the step of an axis.
double axis_step(double largest);

}  // namespace tandem
