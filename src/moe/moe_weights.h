// The weights of one MoE layer as one rank holds them. A part that the rank does not hold is empty.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/packed_weight.h"

namespace tandem {

// A SwiGLU MLP: an expert, a shared expert, or a dense layer.
struct MlpWeights {
  PackedWeight gate_up;  // [2 * intermediate, hidden], arrangement gate_up
  PackedWeight down;     // [hidden, intermediate]
  bool empty() const { return gate_up.empty(); }
};

struct MoeLayerWeights {
  PackedWeight router;              // [num_experts, hidden]; empty where the rank does not route
  std::vector<float> router_bias;   // [num_experts] or empty
  std::vector<MlpWeights> experts;  // [num_experts]; empty entries are held elsewhere
  MlpWeights shared;                // empty: none here
};

}  // namespace tandem
