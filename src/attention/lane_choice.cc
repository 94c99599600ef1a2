#include "attention/lane_choice.h"

#include <algorithm>

namespace tandem {
namespace {

constexpr double kMinGain = 0.1;     // choose_lanes
constexpr double kFade = 1.0 / 256;  // a change of load is followed within some hundred steps

}  // namespace

double step_seconds(const CostLine& attention, const CostLine& experts, double rows, uint32_t lanes) {
  const double part = rows / lanes;
  const double here = attention.at(part), there = experts.at(part);
  return lanes * std::max(here, there) + std::min(here, there);
}

uint32_t choose_lanes(const CostLine& attention, const CostLine& experts, double rows, uint32_t most,
                      uint32_t current) {
  const auto usable = static_cast<uint32_t>(std::max(1.0, std::min<double>(most, rows)));
  const uint32_t now = std::min(std::max(current, 1u), usable);
  uint32_t best = now;
  double best_seconds = step_seconds(attention, experts, rows, now) * (1 - kMinGain);
  for (uint32_t lanes = 1; lanes <= usable; ++lanes) {
    const double seconds = step_seconds(attention, experts, rows, lanes);
    if (seconds >= best_seconds) continue;
    best = lanes;
    best_seconds = seconds;
  }
  return best;
}

void CostMeter::add(double rows, double seconds) {
  for (double* sum : {&weight_, &x_, &y_, &xx_, &xy_}) *sum *= 1 - kFade;
  weight_ += 1;
  x_ += rows;
  y_ += seconds;
  xx_ += rows * rows;
  xy_ += rows * seconds;
}

CostLine CostMeter::line() const {
  if (weight_ == 0) return {};
  const double mean_x = x_ / weight_, mean_y = y_ / weight_;
  const double spread = xx_ / weight_ - mean_x * mean_x;
  if (spread < min_spread_ * mean_x * mean_x) return {mean_y, 0};
  const double slope = (xy_ / weight_ - mean_x * mean_y) / spread;
  // Noise can give a slope below 0 or a fixed part below 0; neither is a cost.
  const double per_row = std::clamp(slope, 0.0, mean_x > 0 ? mean_y / mean_x : 0.0);
  return {mean_y - per_row * mean_x, per_row};
}

}  // namespace tandem
