// LengthDistribution: how long the prompts or answers of a synthetic load are, in tokens. A value; any thread
// with a generator of its own.
#pragma once

#include <cstdint>
#include <random>
#include <string>

#include "base/result.h"

namespace tandem {

class LengthDistribution {
 public:
  // "128": all alike, or uniform in 128 x (1 +- range_ratio); "64:256": uniform, both ends included;
  // "lognormal:200:0.5": median and sigma of the logarithm. Errors name `key` and the text.
  static Result<LengthDistribution> parse(const std::string& key, const std::string& text,
                                          double range_ratio = 0);

  uint32_t sample(std::mt19937_64& random) const;  // in [1, kMost]

  static constexpr uint32_t kMost = 1u << 24;  // beyond every model's context; a bound for the long tail

 private:
  bool is_lognormal_ = false;
  uint32_t low_ = 1, high_ = 1;
  double median_ = 1, sigma_ = 0;
};

}  // namespace tandem
