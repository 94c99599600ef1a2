// Checks that the weights of the attention role are those that the configuration describes, so that a program
// cannot be built over a tensor that is absent or has another shape.
#pragma once

#include "base/result.h"
#include "model/model_config.h"
#include "model/model_weights.h"

namespace tandem {

// internal: names the first weight that is absent or has another shape, with both shapes.
Status check_attention_weights(const ModelConfig& config, const ModelWeights& weights);

}  // namespace tandem
