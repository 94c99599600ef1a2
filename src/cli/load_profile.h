// LoadProfile: a named load: so many requests at once, so long, and the limits of the scheduler beside it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace tandem {

struct LoadProfile {
  std::string name;
  double scale = 1;
  uint32_t input_tokens = 0, output_tokens = 0;  // of each request
  uint32_t concurrency = 0;                      // a finished request makes room for the next
  uint32_t max_num_batched_tokens = 0, max_num_seqs = 0;
  std::vector<uint32_t> capture_sizes;  // of graph mode

  uint32_t context_tokens() const { return input_tokens + output_tokens; }
};

std::vector<std::string> load_profile_names();

// `scale` in (0, 1] multiplies every number of the profile, rounded, at least 1; an answer keeps two tokens
// or more, so that it has a time per token.
LoadProfile load_profile(const std::string& name, double scale);

// invalid_argument: the load does not fit the model's context; names the scale that does.
Status check_context(const LoadProfile& profile, uint32_t max_positions);

}  // namespace tandem
