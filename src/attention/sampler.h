// Sampler: from a row of logits to the next token. Pure: the same logits, parameters, history and index give
// the same token, whatever else is in the batch. Reused buffers; one thread.
//
// A token is drawn by a race (token_race.h): two distributions that are alike draw the same token at the same
// index, whatever their order, so a draft drawn from the drafter's logits with the same parameters is most
// often the token that the model's own logits draw (attention/speculation.h). Over a whole vocabulary no
// candidate is copied, sorted or exponentiated that need not be (logit_scan.h).
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "attention/engine.h"
#include "attention/logit_scan.h"
#include "attention/token_race.h"
#include "base/result.h"

namespace tandem {

// Counts of tokens, kept as a sequence grows: what the penalties look at.
struct TokenHistory {
  std::unordered_map<int32_t, uint32_t>
      generated;                                 // token -> times generated; filled when a penalty needs it
  std::unordered_map<int32_t, uint32_t> prompt;  // only filled when a repetition penalty needs it
};

// What must not be chosen now.
struct TokenBans {
  std::span<const int32_t> never = {};
  // Bit t % 64 of word t / 64: whether token t may be chosen; none behind the last word may. Empty: all may.
  std::span<const uint64_t> allowed = {};
  bool empty() const { return never.empty() && allowed.empty(); }
};

// Refuses parameters outside their range, naming the field, the value and the range.
Status validate_sampling(const SamplingParams& params, uint32_t vocab_size);

// The natural logarithm of the probability of `event.token`, its rank, and of the `top` best, into `event`:
// of the unmodified logits. `scratch` is reused. Any thread.
void add_logprobs(std::span<const float> logits, uint32_t top, std::vector<LogitCandidate>& scratch,
                  TokenEvent& event);

class Sampler {
 public:
  // `index`: how many tokens the sequence has generated.
  // Order, as in vLLM: logit bias and bans, penalties, temperature, top-k, top-p, min-p. Log probabilities
  // are those of the unmodified logits. internal: no finite logit.
  Result<TokenEvent> sample(std::span<const float> logits, const SamplingParams& params, uint64_t seed,
                            const TokenHistory& history, const TokenBans& bans, uint32_t index);

  // The token alone.
  Result<int32_t> choose(std::span<const float> logits, const SamplingParams& params, uint64_t seed,
                         const TokenHistory& history, const TokenBans& bans, uint32_t index);

 private:
  // The logits with bias, bans and penalties: a copy, where there are any.
  std::span<const float> adjusted(std::span<const float> logits, const SamplingParams& params,
                                  const TokenHistory& history, const TokenBans& bans);
  int32_t draw(std::span<const float> logits, float best, const SamplingParams& params, uint64_t key);

  std::vector<float> logits_;
  std::vector<LogitCandidate> candidates_;
};

}  // namespace tandem
