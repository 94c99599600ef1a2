// The configuration of a whole model of a released model's sizes, cut to some layers. Any thread.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "bench/model_shapes.h"
#include "model/model_config.h"

namespace tandem::bench {

// Its config.json: what the family's files say, with `layers` layers; those without experts, without
// compression or with experts by token id in the same share as the whole model has, rounded down.
std::string shape_config_text(const ModelShape& shape, uint32_t layers);

// unsupported: a shape that the engine has no family for, named. invalid_argument: no layers, or more than
// the model has.
Result<ModelConfig> shape_config(const ModelShape& shape, uint32_t layers);

}  // namespace tandem::bench
