// A model folder as a command line names it.
#pragma once

#include <string>

#include "model/model_config.h"

namespace tandem {

// `path`: a model folder, or a config.json. A folder that is not a model is refused, saying what one has.
Result<ModelConfig> read_model_config(const std::string& path);

}  // namespace tandem
