// The weights of one MoE layer as one rank holds them. A part that the rank does not hold is empty.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/packed_weight.h"

namespace tandem {

// A SwiGLU MLP: an expert, a shared expert, or a dense layer. A slice of an expert's intermediate rows is a
// smaller MLP; the outputs of all slices add up to the expert's.
struct MlpWeights {
  PackedWeight gate_up;  // [2 * intermediate, hidden], arrangement gate_up
  PackedWeight down;     // [hidden, intermediate]
  // Added to the products: [2 * intermediate], of gate, then of up; [hidden], only in the slice that has the
  // expert's first rows. Empty: none.
  std::vector<float> gate_up_bias = {}, down_bias = {};
  uint32_t row_begin = 0;  // where the slice begins among the expert's intermediate rows; 0 for a whole MLP
  bool empty() const { return gate_up.empty(); }
  uint32_t row_end() const { return row_begin + down.cols; }
};

struct MoeLayerWeights {
  PackedWeight router;             // [num_experts, hidden]; empty where the rank does not route
  std::vector<float> router_bias;  // [num_experts] or empty
  std::vector<float> logit_bias;   // [num_experts]: of the router's product itself; or empty
  // [vocab, top_k]: the experts of each token id, where the layer selects by that. A row may name one twice.
  std::vector<int32_t> hash_experts;
  std::vector<MlpWeights> experts;  // [num_experts], whole or a slice; empty: held elsewhere
  MlpWeights shared;                // empty: none here
  // [hidden]: a row takes sigmoid(row . shared_gate) of its shared expert (Qwen2-MoE); empty: all of it
  std::vector<float> shared_gate;
};

}  // namespace tandem
