// Integers within bounds, as decimal text. Pure; any thread.
#pragma once

#include <cstdint>
#include <optional>

#include "grammar/grammar_expression.h"

namespace tandem {

// The largest number of 18 digits: one more, and bounds would not fit int64 on either side of a cut.
inline constexpr int64_t kMostInteger = 999'999'999'999'999'999;

// Every integer from `min` to `max`, both included, without leading zeros or "-0". A bound that is absent, or
// larger, is +-kMostInteger. min <= max, min <= kMostInteger, max >= -kMostInteger.
GrammarExpression integers_between(std::optional<int64_t> min, std::optional<int64_t> max);

}  // namespace tandem
