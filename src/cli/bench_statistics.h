// BenchStatistics: what may be said of runs that scatter. Values. Any thread.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace tandem {

struct Spread {
  size_t runs = 0;
  double mean = 0;
  double deviation = 0;  // of one run, from the sample: n - 1; 0 with one run
};
Spread spread_of(std::span<const double> values);

// Two-sided 95 % quantile of Student's t with `degrees` of freedom, at least 1.
double student_t(size_t degrees);

enum class Verdict : unsigned char {
  no_band,  // fewer than two runs in either arm
  inside,
  better,
  worse,
};

struct Comparison {
  double delta = 0;     // other - reference, in the metric's unit
  double relative = 0;  // delta / reference; 0 when the reference is 0
  // The noise band: a delta of two arms that do not differ lies within +- band in 95 of 100 experiments.
  // band = t(n + m - 2) * s * sqrt(1/n + 1/m), s the pooled deviation of the runs within their arms.
  double band = 0;
  Verdict verdict = Verdict::no_band;
};
Comparison compare(const Spread& reference, const Spread& other, bool higher_is_better);

// "inside the band: no measurable change", "better by 3.1 %, outside the band", ...
std::string verdict_text(const Comparison& comparison);

// How the band was made, for a report.
inline constexpr const char* kBandFormula =
    "band = t(0.95, n + m - 2) * s * sqrt(1/n + 1/m); s: the pooled standard deviation of runs within their "
    "arm; "
    "n, m: runs of the two arms. One verdict in twenty falls outside by chance.";

}  // namespace tandem
