#include "attention/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

namespace tandem {
namespace {

// Below this a temperature divides logits into infinities; vLLM draws the line at the same place.
constexpr float kGreedyTemperature = 1e-5f;
// JSON has no -inf: what vLLM's server writes in its place.
constexpr float kLowestLogprob = -9999.0f;
constexpr float kBanned = -std::numeric_limits<float>::infinity();

Status range_error(const char* field, const std::string& value, const char* range) {
  return make_error(ErrorCode::invalid_argument,
                    std::string(field) + " is " + value + "; it must be " + range);
}

Status check_ids(const char* field, int32_t id, uint32_t vocab_size) {
  if (id >= 0 && static_cast<uint32_t>(id) < vocab_size) return {};
  return make_error(ErrorCode::invalid_argument, std::string(field) + ": token id " + std::to_string(id) +
                                                     " is not in 0.." + std::to_string(vocab_size - 1));
}

void ban_all_but(std::span<const uint64_t> allowed, std::span<float> logits) {
  for (size_t begin = 0; begin < logits.size(); begin += 64) {
    const uint64_t word = begin / 64 < allowed.size() ? allowed[begin / 64] : 0;
    if (word == UINT64_MAX) continue;
    const size_t count = std::min<size_t>(64, logits.size() - begin);
    for (size_t i = 0; i < count; ++i) {
      if ((word >> i & 1) == 0) logits[begin + i] = kBanned;
    }
  }
}

void apply_penalties(const SamplingParams& params, const TokenHistory& history, std::span<float> logits) {
  if (params.repetition_penalty != 1.0f) {
    const auto repeat = [&](int32_t token) {
      float& logit = logits[static_cast<size_t>(token)];
      logit = logit > 0 ? logit / params.repetition_penalty : logit * params.repetition_penalty;
    };
    for (const auto& [token, count] : history.prompt) repeat(token);
    for (const auto& [token, count] : history.generated) {
      if (!history.prompt.contains(token)) repeat(token);
    }
  }
  if (params.frequency_penalty == 0.0f && params.presence_penalty == 0.0f) return;
  for (const auto& [token, count] : history.generated) {
    logits[static_cast<size_t>(token)] -=
        params.frequency_penalty * static_cast<float>(count) + params.presence_penalty;
  }
}

}  // namespace

Status validate_sampling(const SamplingParams& p, uint32_t vocab_size) {
  const auto text = [](auto value) { return std::to_string(value); };
  if (!(p.temperature >= 0.0f && p.temperature <= 100.0f))
    return range_error("temperature", text(p.temperature), "in 0..100");
  if (p.top_k < -1) return range_error("top_k", text(p.top_k), "-1 or 0 (off), or at least 1");
  if (!(p.top_p >= 0.0f && p.top_p <= 1.0f)) return range_error("top_p", text(p.top_p), "in 0..1");
  if (!(p.min_p >= 0.0f && p.min_p <= 1.0f)) return range_error("min_p", text(p.min_p), "in 0..1");
  if (!(std::abs(p.frequency_penalty) <= 2.0f))
    return range_error("frequency_penalty", text(p.frequency_penalty), "in -2..2");
  if (!(std::abs(p.presence_penalty) <= 2.0f))
    return range_error("presence_penalty", text(p.presence_penalty), "in -2..2");
  if (!(p.repetition_penalty > 0.0f && p.repetition_penalty <= 100.0f)) {
    return range_error("repetition_penalty", text(p.repetition_penalty), "above 0 and at most 100");
  }
  if (p.min_tokens > p.max_tokens) return range_error("min_tokens", text(p.min_tokens), "at most max_tokens");
  if (p.top_logprobs < -1 || p.top_logprobs > 20)
    return range_error("top_logprobs", text(p.top_logprobs), "in 0..20");
  if (p.prompt_logprobs < -1 || p.prompt_logprobs > 20)
    return range_error("prompt_logprobs", text(p.prompt_logprobs), "in 0..20");
  for (int32_t id : p.stop_token_ids) TANDEM_TRY(check_ids("stop_token_ids", id, vocab_size));
  for (const auto& [id, bias] : p.logit_bias) {
    TANDEM_TRY(check_ids("logit_bias", id, vocab_size));
    if (!(std::abs(bias) <= 100.0f)) return range_error("logit_bias", text(bias), "in -100..100");
  }
  return {};
}

void add_logprobs(std::span<const float> logits, uint32_t top, std::vector<LogitCandidate>& scratch,
                  TokenEvent& event) {
  float largest = kBanned;
  for (float logit : logits) {
    if (logit > largest) largest = logit;
  }
  double sum = 0;
  for (float logit : logits) {
    if (!std::isnan(logit)) sum += std::exp(static_cast<double>(logit) - largest);
  }
  const double log_sum = largest + std::log(sum);
  const auto logprob = [&](int32_t token) {
    const double value = logits[static_cast<size_t>(token)] - log_sum;
    return std::isfinite(value) ? std::max(static_cast<float>(value), kLowestLogprob) : kLowestLogprob;
  };
  event.logprob = logprob(event.token);
  const float mine = logits[static_cast<size_t>(event.token)];
  event.rank =
      1 + static_cast<uint32_t>(std::ranges::count_if(logits, [&](float logit) { return logit > mine; }));
  if (top == 0) return;
  const size_t wanted = std::min<size_t>(top, logits.size());
  best_logits(logits, wanted, scratch);
  for (size_t i = 0; scratch.size() < wanted && i < logits.size(); ++i) {
    if (!std::isfinite(logits[i])) scratch.push_back({kBanned, static_cast<int32_t>(i)});
  }
  for (const LogitCandidate& candidate : scratch) {
    event.top_logprobs.push_back({candidate.token, logprob(candidate.token)});
  }
}

Result<TokenEvent> Sampler::sample(std::span<const float> logits, const SamplingParams& params, uint64_t seed,
                                   const TokenHistory& history, const TokenBans& bans, uint32_t index) {
  TokenEvent event;
  event.index = index;
  TANDEM_ASSIGN(event.token, choose(logits, params, seed, history, bans, index));
  if (params.top_logprobs >= 0)
    add_logprobs(logits, static_cast<uint32_t>(params.top_logprobs), candidates_, event);
  return event;
}

Result<int32_t> Sampler::choose(std::span<const float> logits, const SamplingParams& params, uint64_t seed,
                                const TokenHistory& history, const TokenBans& bans, uint32_t index) {
  const std::span<const float> used = adjusted(logits, params, history, bans);
  const size_t best = best_logit(used);
  if (best == used.size() || !std::isfinite(used[best])) {
    return make_error(
        ErrorCode::internal,
        "no finite logit to sample from: the model's weights, this request's bans or its grammar leave none");
  }
  const bool greedy = params.temperature < kGreedyTemperature || params.top_k == 1 || params.top_p == 0.0f;
  return greedy ? static_cast<int32_t>(best)
                : draw(used, used[best], params, draw_key(seed, params.stream, index));
}

std::span<const float> Sampler::adjusted(std::span<const float> logits, const SamplingParams& params,
                                         const TokenHistory& history, const TokenBans& bans) {
  if (params.logit_bias.empty() && bans.empty() && !params.has_penalties()) return logits;
  logits_.assign(logits.begin(), logits.end());
  for (const auto& [token, bias] : params.logit_bias) logits_[static_cast<size_t>(token)] += bias;
  for (int32_t token : bans.never) logits_[static_cast<size_t>(token)] = kBanned;
  if (!bans.allowed.empty()) ban_all_but(bans.allowed, logits_);
  apply_penalties(params, history, logits_);
  return logits_;
}

int32_t Sampler::draw(std::span<const float> logits, float best, const SamplingParams& params, uint64_t key) {
  TokenRace race(key, best, params.temperature, params.min_p);
  if (params.top_k <= 0 || static_cast<size_t>(params.top_k) >= logits.size()) {
    if (params.top_p < 1.0f) {
      race.enter_all(logits, last_of_nucleus(logits, best, params.temperature, params.top_p, candidates_));
    } else {
      race.enter_all(logits);
    }
    return race.winner();
  }
  best_logits(logits, static_cast<size_t>(params.top_k), candidates_);
  double wanted = std::numeric_limits<double>::infinity();
  if (params.top_p < 1.0f) {
    wanted = 0;
    for (const LogitCandidate& candidate : candidates_) wanted += race.probability(candidate.logit);
    wanted *= params.top_p;
  }
  double sum = 0;
  for (const LogitCandidate& candidate : candidates_) {
    race.enter(candidate.logit, candidate.token);
    sum += race.probability(candidate.logit);
    if (sum >= wanted) break;  // the one that crosses the threshold is in
  }
  return race.winner();
}

}  // namespace tandem
