// Integers within bounds, as decimal text. Pure; any thread.
#pragma once

#include <cstdint>
#include <optional>

#include "grammar/grammar_expression.h"

namespace tandem {

// Every integer from `min` to `max`, both included, without leading zeros or "-0". A bound that is absent is
// 19 digits long. min <= max.
GrammarExpression integers_between(std::optional<int64_t> min, std::optional<int64_t> max);

}  // namespace tandem
