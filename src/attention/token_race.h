// How a token is drawn: a race. Each candidate has its own random number, which depends on the seed, the
// token's index and the candidate alone, and -log(number) / probability is its time; the first one wins, of
// equal times the lower id. So the winner does not depend on the order in which candidates enter, and most
// need not be timed: one whose time cannot be below the best so far is passed over by a bound that costs no
// logarithm and no exponential. One thread.
#pragma once

#include <cstdint>
#include <limits>
#include <span>

#include "attention/logit_scan.h"

namespace tandem {

// What the draw of one token hangs on, and nothing else: seed, stream and index of the token.
uint64_t draw_key(uint64_t seed, uint32_t stream, uint32_t index);
// A number in (0, 1) for one candidate of a draw.
double uniform_for(uint64_t key, int32_t token);

class TokenRace {
 public:
  // `best`: the largest logit of all that may enter; `temperature` above 0. Candidates with less than `min_p`
  // of the best one's probability stay out.
  TokenRace(uint64_t key, float best, float temperature, float min_p)
      : key_(key), best_(best), temperature_(temperature), min_p_(min_p) {}

  // Its probability, relative to the best one's.
  double probability(float logit) const;

  // A finite logit.
  void enter(float logit, int32_t token);
  // Token i has logits[i]. What is not finite stays out, and so does what comes behind `last` (logit_scan.h
  // has the order).
  void enter_all(std::span<const float> logits, const LogitCandidate& last = kNoLast);

  int32_t winner() const { return winner_; }  // -1: nobody entered

 private:
  static constexpr LogitCandidate kNoLast{-std::numeric_limits<float>::infinity(), 0};

  uint64_t key_;
  float best_, temperature_, min_p_;
  double first_ = 0;  // the winner's time
  int32_t winner_ = -1;
};

}  // namespace tandem
