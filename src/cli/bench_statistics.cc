#include "cli/bench_statistics.h"

#include <fmt/format.h>

#include <array>
#include <cmath>

namespace tandem {

Spread spread_of(std::span<const double> values) {
  Spread spread;
  spread.runs = values.size();
  if (values.empty()) return spread;
  for (const double value : values) spread.mean += value;
  spread.mean /= static_cast<double>(values.size());
  if (values.size() < 2) return spread;
  double squares = 0;
  for (const double value : values) squares += (value - spread.mean) * (value - spread.mean);
  spread.deviation = std::sqrt(squares / static_cast<double>(values.size() - 1));
  return spread;
}

double student_t(size_t degrees) {
  // Tables of Student's t, 0.975; beyond 30 the Cornish-Fisher expansion about the normal quantile is good to
  // three digits.
  constexpr std::array<double, 30> kTable = {12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306,
                                             2.262,  2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
                                             2.110,  2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064,
                                             2.060,  2.056, 2.052, 2.048, 2.045, 2.042};
  if (degrees == 0) degrees = 1;
  if (degrees <= kTable.size()) return kTable[degrees - 1];
  constexpr double kNormal = 1.959964;
  return kNormal + (kNormal * kNormal * kNormal + kNormal) / (4 * static_cast<double>(degrees));
}

Comparison compare(const Spread& reference, const Spread& other, bool higher_is_better) {
  Comparison comparison;
  comparison.delta = other.mean - reference.mean;
  if (reference.mean != 0) comparison.relative = comparison.delta / reference.mean;
  if (reference.runs < 2 || other.runs < 2) return comparison;
  const auto n = static_cast<double>(reference.runs);
  const auto m = static_cast<double>(other.runs);
  const double squares =
      (n - 1) * reference.deviation * reference.deviation + (m - 1) * other.deviation * other.deviation;
  comparison.band = student_t(reference.runs + other.runs - 2) * std::sqrt(squares / (n + m - 2)) *
                    std::sqrt(1 / n + 1 / m);
  if (std::abs(comparison.delta) <= comparison.band) {
    comparison.verdict = Verdict::inside;
  } else {
    comparison.verdict = (comparison.delta > 0) == higher_is_better ? Verdict::better : Verdict::worse;
  }
  return comparison;
}

std::string verdict_text(const Comparison& comparison) {
  switch (comparison.verdict) {
    case Verdict::no_band:
      return "no band: each arm needs two runs or more";
    case Verdict::inside:
      return "inside the band: no measurable change";
    case Verdict::better:
    case Verdict::worse:
      return fmt::format("{} by {:.1f} %, outside the band",
                         comparison.verdict == Verdict::better ? "better" : "worse",
                         100 * std::abs(comparison.relative));
  }
  return {};
}

}  // namespace tandem
