// The JSON of replies of /tokenize and /detokenize. Pure functions; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "serving/served_model.h"

namespace tandem {

// `with_strings`: the vocabulary's own spelling of each token as well.
std::string tokenize_json(const ServedModel& model, const std::vector<int32_t>& tokens, bool with_strings);
std::string detokenize_json(const std::string& text);

}  // namespace tandem
