// Sampler: from a row of logits to the next token. Pure: the same logits, parameters, history and index give
// the same token, whatever else is in the batch. Reused buffers; one thread.
//
// A token is drawn by a race: each candidate has its own random number, which depends on the seed, the
// token's index and the candidate alone, and -log(number) / probability is its time; the first one wins. So
// two distributions that are alike draw the same token at the same index, whatever their order: a draft drawn
// from the drafter's logits with the same parameters is most often the token that the model's own logits draw
// (attention/speculation.h).
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "attention/engine.h"
#include "base/result.h"

namespace tandem {

// Counts of tokens, kept as a sequence grows: what the penalties look at.
struct TokenHistory {
  std::unordered_map<int32_t, uint32_t>
      generated;                                 // token -> times generated; filled when a penalty needs it
  std::unordered_map<int32_t, uint32_t> prompt;  // only filled when a repetition penalty needs it
};

// Refuses parameters outside their range, naming the field, the value and the range.
Status validate_sampling(const SamplingParams& params, uint32_t vocab_size);

// What the draw of one token hangs on, and nothing else: seed, stream and index of the token.
uint64_t draw_key(uint64_t seed, uint32_t stream, uint32_t index);
// A number in (0, 1) for one candidate of a draw.
double uniform_for(uint64_t key, int32_t token);

class Sampler {
 public:
  // `index`: how many tokens the sequence has generated. `never` are tokens that must not be chosen now.
  // Order, as in vLLM: logit bias and bans, penalties, temperature, top-k, top-p, min-p. Log probabilities
  // are those of the unmodified logits. internal: no finite logit.
  Result<TokenEvent> sample(std::span<const float> logits, const SamplingParams& params, uint64_t seed,
                            const TokenHistory& history, std::span<const int32_t> never, uint32_t index);

  // The token alone.
  Result<int32_t> choose(std::span<const float> logits, const SamplingParams& params, uint64_t seed,
                         const TokenHistory& history, std::span<const int32_t> never, uint32_t index);

 private:
  struct Candidate {
    float logit;
    int32_t token;
  };
  int32_t draw(const SamplingParams& params, uint64_t key);
  void add_logprobs(std::span<const float> logits, const SamplingParams& params, TokenEvent& event);

  std::vector<float> logits_;
  std::vector<Candidate> candidates_;
  std::vector<double> probabilities_;
};

}  // namespace tandem
