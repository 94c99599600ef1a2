// Decode steps of a model folder through the engine, in the placement of the settings: what `bench decode
// --model` runs.
#pragma once

#include <cstdint>
#include <vector>

#include "cli/settings.h"

namespace tandem {

// Each number of sequences at each context (tokens of a sequence, the first decoded one included). Prints;
// the limits of the scheduler and the pools are set to what the largest case needs. invalid_argument: a
// context beyond the model's positions.
Result<int> run_engine_decode(Settings settings, const std::vector<uint32_t>& batches,
                              const std::vector<uint32_t>& contexts);

}  // namespace tandem
