// Runs many prompts through an engine with a bounded number in flight and waits for all: what `generate` and
// `eval` need.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "attention/engine.h"

namespace tandem {

struct BatchAnswer {
  std::vector<TokenEvent> events;
  Finish finish;
  double seconds = 0;  // from submission to the end
  double first_token_seconds = 0;
  std::vector<double> token_seconds;  // of each event, from submission
  // [prompt], where SamplingParams::prompt_logprobs asked for them; 0 at position 0.
  std::vector<float> prompt_logprobs;
  std::vector<int32_t> tokens() const;
};

// Answers in the order of the requests. A request that the engine refuses, or that ends with an error, is an
// answer whose finish.reason is error. `on_answer(index, answer)` is called on the caller's thread as answers
// come, in any order.
std::vector<BatchAnswer> generate_batch(
    Engine& engine, std::span<const GenerationRequest> requests, uint32_t concurrency,
    const std::function<void(size_t, const BatchAnswer&)>& on_answer = {});

// FNV-1a over the answers' logits hashes, in order: two placements agree exactly when these agree.
uint64_t combined_hash(std::span<const BatchAnswer> answers);

}  // namespace tandem
