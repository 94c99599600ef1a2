// What every engine refuses at once, wherever it stands. Pure, any thread.
#pragma once

#include "attention/engine.h"

namespace tandem {

// invalid_argument naming the field: an empty or too long prompt (both numbers), ids outside the vocabulary,
// sampling parameters outside their range.
Status check_request(const GenerationRequest& request, const EngineLimits& limits);

// resource_exhausted: the queue is full.
std::unexpected<Error> queue_is_full(const EngineLimits& limits);

}  // namespace tandem
