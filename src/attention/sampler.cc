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

// Larger logit first, then the lower id: a total order, so that ties cannot depend on the batch.
template <class Candidate>
bool better(const Candidate& a, const Candidate& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.token < b.token);
}

uint64_t mix(uint64_t x) {  // splitmix64's finaliser (Steele, Lea, Flood 2014)
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
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
  if (p.max_tokens == 0) return range_error("max_tokens", "0", "at least 1");
  if (p.min_tokens > p.max_tokens) return range_error("min_tokens", text(p.min_tokens), "at most max_tokens");
  if (p.top_logprobs < -1 || p.top_logprobs > 20)
    return range_error("top_logprobs", text(p.top_logprobs), "in 0..20");
  for (int32_t id : p.stop_token_ids) TANDEM_TRY(check_ids("stop_token_ids", id, vocab_size));
  for (const auto& [id, bias] : p.logit_bias) {
    TANDEM_TRY(check_ids("logit_bias", id, vocab_size));
    if (!(std::abs(bias) <= 100.0f)) return range_error("logit_bias", text(bias), "in -100..100");
  }
  return {};
}

uint64_t draw_key(uint64_t seed, uint32_t stream, uint32_t index) {
  return mix(mix(mix(seed) ^ stream) ^ index);
}

double uniform_for(uint64_t key, int32_t token) {
  // Half a step up: never 0, whose logarithm is infinite.
  return (static_cast<double>(mix(key ^ static_cast<uint32_t>(token)) >> 11) + 0.5) * 0x1.0p-53;
}

Result<TokenEvent> Sampler::sample(std::span<const float> logits, const SamplingParams& params, uint64_t seed,
                                   const TokenHistory& history, std::span<const int32_t> never,
                                   uint32_t index) {
  TokenEvent event;
  event.index = index;
  TANDEM_ASSIGN(event.token, choose(logits, params, seed, history, never, index));
  if (params.top_logprobs >= 0) add_logprobs(logits, params, event);
  return event;
}

Result<int32_t> Sampler::choose(std::span<const float> logits, const SamplingParams& params, uint64_t seed,
                                const TokenHistory& history, std::span<const int32_t> never, uint32_t index) {
  logits_.assign(logits.begin(), logits.end());
  for (float& logit : logits_) {
    if (std::isnan(logit)) logit = kBanned;
  }
  for (const auto& [token, bias] : params.logit_bias) logits_[static_cast<size_t>(token)] += bias;
  for (int32_t token : never) logits_[static_cast<size_t>(token)] = kBanned;
  apply_penalties(params, history, logits_);

  const auto best = std::max_element(logits_.begin(), logits_.end());  // the first of equal ones
  if (best == logits_.end() || !std::isfinite(*best)) {
    return make_error(
        ErrorCode::internal,
        "no finite logit to sample from: the model's weights or this request's bans leave none");
  }
  const bool greedy = params.temperature < kGreedyTemperature || params.top_k == 1 || params.top_p == 0.0f;
  return greedy ? static_cast<int32_t>(best - logits_.begin())
                : draw(params, draw_key(seed, params.stream, index));
}

int32_t Sampler::draw(const SamplingParams& params, uint64_t key) {
  candidates_.clear();
  for (size_t i = 0; i < logits_.size(); ++i) {
    if (std::isfinite(logits_[i])) candidates_.push_back({logits_[i], static_cast<int32_t>(i)});
  }
  if (params.top_k > 0 && static_cast<size_t>(params.top_k) < candidates_.size()) {
    const auto end = candidates_.begin() + params.top_k;
    std::nth_element(candidates_.begin(), end - 1, candidates_.end(), better<Candidate>);
    candidates_.erase(end, candidates_.end());
  }
  // Only what cuts off by probability needs the order.
  const bool cuts = params.top_p < 1.0f || params.min_p > 0.0f;
  if (cuts) std::sort(candidates_.begin(), candidates_.end(), better<Candidate>);
  const float best =
      cuts ? candidates_.front().logit : std::ranges::min_element(candidates_, better<Candidate>)->logit;

  // Probabilities relative to the best one, in float64: their sum over a large vocabulary stays exact enough.
  probabilities_.clear();
  double total = 0;
  for (const Candidate& candidate : candidates_) {
    const double p = std::exp((static_cast<double>(candidate.logit) - best) / params.temperature);
    probabilities_.push_back(p);
    total += p;
  }
  size_t kept = candidates_.size();
  if (params.top_p < 1.0f) {
    double sum = 0;
    for (kept = 0; kept < candidates_.size() && sum < params.top_p * total; ++kept)
      sum += probabilities_[kept];
    kept = std::max<size_t>(kept, 1);
  }
  while (kept > 1 && probabilities_[kept - 1] < params.min_p) --kept;

  int32_t winner = -1;
  double first = std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < kept; ++i) {
    const double time = -std::log(uniform_for(key, candidates_[i].token)) / probabilities_[i];
    // Equal times (a probability that is 0 in float64 never finishes): the lower id, in whatever order.
    if (time < first || (time == first && candidates_[i].token < winner) || winner < 0) {
      first = time;
      winner = candidates_[i].token;
    }
  }
  return winner;
}

void Sampler::add_logprobs(std::span<const float> logits, const SamplingParams& params, TokenEvent& event) {
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
  if (params.top_logprobs == 0) return;
  candidates_.clear();
  for (size_t i = 0; i < logits.size(); ++i) {
    candidates_.push_back({std::isnan(logits[i]) ? kBanned : logits[i], static_cast<int32_t>(i)});
  }
  const size_t count = std::min<size_t>(static_cast<size_t>(params.top_logprobs), candidates_.size());
  std::partial_sort(candidates_.begin(), candidates_.begin() + static_cast<std::ptrdiff_t>(count),
                    candidates_.end(), better<Candidate>);
  for (size_t i = 0; i < count; ++i) {
    event.top_logprobs.push_back({candidates_[i].token, logprob(candidates_[i].token)});
  }
}

}  // namespace tandem
