// ProbePrompts: prompts that need no tokenizer: token ids from a seed, the same on every machine.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "attention/engine.h"

namespace tandem {

// `length` ids in 0..vocab_size - 1. Not uniform_int_distribution: what it draws is the library's choice.
std::vector<int32_t> random_prompt(std::mt19937_64& random, uint32_t length, uint32_t vocab_size);

// One greedy request for each length, which goes on behind the end of sequence for `max_tokens` tokens, and
// is computed whole: they are run again and again to be measured and compared.
std::vector<GenerationRequest> random_requests(uint64_t seed, const std::vector<uint32_t>& lengths,
                                               uint32_t vocab_size, uint32_t max_tokens);

}  // namespace tandem
