#include "attention/token_race.h"

#include <bit>
#include <cmath>
#include <limits>
#include <numbers>

namespace tandem {
namespace {

uint64_t mix(uint64_t x) {  // splitmix64's finaliser (Steele, Lea, Flood 2014)
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

// Not below 2^y, for y <= 0: 1 + f is at least 2^f for a fraction f, and a float's bits are that line between
// powers of two.
float exp2_bound(float y) {
  const float clamped = y > -126.0f ? y : -126.0f;  // a NaN as well
  return std::bit_cast<float>(static_cast<int32_t>((clamped + 127.0f) * 0x1p23f));
}

// Of the float32 arithmetic in the bounds: 2^y is off by 126 * 2^-22 at most, relatively.
constexpr float kBoundMargin = 1.0001f;
}  // namespace

uint64_t draw_key(uint64_t seed, uint32_t stream, uint32_t index) {
  return mix(mix(mix(seed) ^ stream) ^ index);
}

double uniform_for(uint64_t key, int32_t token) {
  // Half a step up: never 0, whose logarithm is infinite.
  return (static_cast<double>(mix(key ^ static_cast<uint32_t>(token)) >> 11) + 0.5) * 0x1.0p-53;
}

double TokenRace::probability(float logit) const {
  return std::exp((static_cast<double>(logit) - best_) / temperature_);
}

void TokenRace::enter(float logit, int32_t token) {
  const double p = probability(logit);
  if (p < min_p_) return;
  const double time = -std::log(uniform_for(key_, token)) / p;
  // A probability that is 0 in float64 never finishes: the lower id of those, should there be no other.
  if (winner_ >= 0 && (time > first_ || (time == first_ && token > winner_))) return;
  first_ = time;
  winner_ = token;
}

void TokenRace::enter_all(std::span<const float> logits, const LogitCandidate& last) {
  const float scale = std::numbers::log2e_v<float> / temperature_;
  constexpr float kNoBound = std::numeric_limits<float>::infinity();
  float bar = winner_ >= 0 ? static_cast<float>(first_) * kBoundMargin : kNoBound;
  for (size_t i = 0; i < logits.size(); ++i) {
    // -log(u) is at least 1 - u, of which 24 bits are taken, rounded down.
    const uint64_t bits = mix(key_ ^ static_cast<uint32_t>(i));
    const float least = static_cast<float>(static_cast<int32_t>(~bits >> 40)) * 0x1p-24f;
    if (least > bar * exp2_bound((logits[i] - best_) * scale)) continue;
    const LogitCandidate candidate{logits[i], static_cast<int32_t>(i)};
    if (!std::isfinite(candidate.logit) || better(last, candidate)) continue;
    enter(candidate.logit, candidate.token);
    if (winner_ >= 0) bar = static_cast<float>(first_) * kBoundMargin;
  }
}

}  // namespace tandem
