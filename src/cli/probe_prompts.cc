#include "cli/probe_prompts.h"

namespace tandem {

std::vector<int32_t> random_prompt(std::mt19937_64& random, uint32_t length, uint32_t vocab_size) {
  std::vector<int32_t> prompt(length);
  for (int32_t& id : prompt) id = static_cast<int32_t>(random() % vocab_size);
  return prompt;
}

std::vector<GenerationRequest> random_requests(uint64_t seed, const std::vector<uint32_t>& lengths,
                                               uint32_t vocab_size, uint32_t max_tokens) {
  std::mt19937_64 random(seed);
  std::vector<GenerationRequest> requests;
  for (const uint32_t length : lengths) {
    GenerationRequest request;
    request.prompt = random_prompt(random, length, vocab_size);
    request.sampling.temperature = 0;
    request.sampling.max_tokens = max_tokens;
    request.sampling.ignore_eos = true;
    request.bypass_prefix_cache = true;
    requests.push_back(std::move(request));
  }
  return requests;
}

}  // namespace tandem
