// The reference outputs of a parity fixture: parity.safetensors, read and checked against the model's shape.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/model_config.h"

namespace tandem {

struct FixtureRouting {
  std::vector<int32_t> ids;    // [tokens, top_k], ascending in each row
  std::vector<float> weights;  // [tokens, top_k]
};

// What DSpark drafts behind some positions of a prompt, each token the best of its logits.
struct FixtureBlocks {
  std::vector<uint32_t> positions;  // [blocks], ascending: the last token that the drafter has seen
  std::vector<int32_t> ids;         // [blocks, block size]
  std::vector<float> logits;        // [blocks, block size, vocab]
  std::vector<float> confidences;   // [blocks, block size]
};

struct FixturePrompt {
  std::vector<int32_t> ids;                    // [tokens]
  std::vector<float> logits;                   // [tokens, vocab]
  std::vector<int32_t> greedy_ids;             // [steps]
  std::vector<float> greedy_logits;            // [steps, vocab]
  std::map<uint32_t, FixtureRouting> routing;  // of each MoE layer
  // [tokens - 1, vocab]: of the model's drafter, which knows the token behind each; empty where the fixture
  // has none
  std::vector<float> draft_logits;
  FixtureBlocks blocks;  // empty where the fixture has none
};

// not_found: no parity.safetensors in `folder`, or no prompt in it. data_loss: a tensor is absent or has
// another type or shape than the model needs, or a token id is outside the vocabulary (named).
Result<std::vector<FixturePrompt>> read_parity_fixture(const std::string& folder, const ModelConfig& config);

}  // namespace tandem
