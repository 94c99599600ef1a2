// What the commands read of a model folder beside its weights: configuration, and which tokens end a sequence.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/model_config.h"

namespace tandem {

// `path`: a model folder, or a config.json. A folder that is not a model is refused, saying what one has.
Result<ModelConfig> read_model_config(const std::string& path);

// From generation_config.json where it is, else from config.json.
Result<std::vector<int32_t>> read_eos_token_ids(const std::string& folder, const ModelConfig& config);

}  // namespace tandem
