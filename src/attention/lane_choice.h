// How many decode lanes a run with `micro_batches: auto` uses: one, until measured steps say that overlapping
// attention with the experts gains more than computing in smaller parts costs. Values and a pure rule; one
// thread.
//
// A side's time for a step of r rows is taken as a line, fixed + per_row * r: the fixed part is what reading
// weights and waking peers costs however few rows there are, and every lane pays it again. One lane takes
// attention(r) + experts(r): each side idles while the other works. n lanes of r / n rows keep both busy: the
// slower side works n times, and the faster one shows once, at the start of the pipeline.
#pragma once

#include <cstdint>

namespace tandem {

inline constexpr uint32_t kMaxMicroBatches = 8;

struct CostLine {
  double fixed = 0, per_row = 0;  // seconds
  double at(double rows) const { return fixed + per_row * rows; }
};

// Predicted seconds of a step of `rows` rows over `lanes` lanes.
double step_seconds(const CostLine& attention, const CostLine& experts, double rows, uint32_t lanes);

// `current`, unless another number of 1..most is predicted to be faster by a tenth: the prediction is no
// better than that, and changing back and forth gains nothing.
uint32_t choose_lanes(const CostLine& attention, const CostLine& experts, double rows, uint32_t most,
                      uint32_t current);

// The line through measured (rows, seconds), by least squares with fading weights. While all steps had about
// the same number of rows nothing tells the fixed part from the rest: then all of it counts as fixed, which
// speaks for one lane.
class CostMeter {
 public:
  CostMeter() = default;
  // `min_spread`: of the rows' mean, squared, from which on a slope is told.
  explicit CostMeter(double min_spread) : min_spread_(min_spread) {}
  void add(double rows, double seconds);
  CostLine line() const;
  double mean_rows() const { return weight_ > 0 ? x_ / weight_ : 0; }

 private:
  double min_spread_ = 0.05;  // rows that differ by a fifth
  double weight_ = 0, x_ = 0, y_ = 0, xx_ = 0, xy_ = 0;
};

}  // namespace tandem
