#include "attention/token_race.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace tandem {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

// The race as its header defines it: every candidate is timed.
int32_t timed_race(uint64_t key, const std::vector<float>& logits, float temperature, float min_p,
                   const LogitCandidate& last) {
  float best = -kInf;
  for (const float logit : logits) {
    if (logit > best) best = logit;
  }
  int32_t winner = -1;
  double first = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    const LogitCandidate candidate{logits[i], static_cast<int32_t>(i)};
    if (!std::isfinite(logits[i]) || better(last, candidate)) continue;
    const double p = std::exp((static_cast<double>(logits[i]) - best) / temperature);
    if (p < min_p) continue;
    const double time = -std::log(uniform_for(key, candidate.token)) / p;
    if (winner >= 0 && time >= first) continue;  // ids ascend: of equal times the first stays
    first = time;
    winner = candidate.token;
  }
  return winner;
}

// The bounds must never pass over a winner, at any spread of the logits.
TEST(TokenRace, PassesOverNobodyWhoCouldWin) {
  std::mt19937 random(3);
  uint64_t key = 0;
  for (float spread : {0.0f, 1e-3f, 1.0f, 8.0f, 1e4f, 1e38f}) {
    for (float temperature : {2e-5f, 0.7f, 1.0f, 100.0f}) {
      for (size_t size : {1, 7, 300, 4000}) {
        std::normal_distribution<float> normal(0, 1);
        std::vector<float> row(size);
        for (float& logit : row) {
          logit = normal(random) * spread;
          if (random() % 32 == 0) logit = random() % 2 == 0 ? -kInf : std::nanf("");
          if (std::isinf(logit) && logit > 0) logit = 0;
        }
        row[size / 2] = 0.5f;
        float best = row[best_logit(row)];
        const LogitCandidate middle{0.5f, static_cast<int32_t>(size / 2)};
        for (const LogitCandidate& last : {LogitCandidate{-kInf, 0}, middle}) {
          for (float min_p : {0.0f, 0.2f}) {
            for (int draw = 0; draw < 5; ++draw) {
              TokenRace race(++key, best, temperature, min_p);
              race.enter_all(row, last);
              ASSERT_EQ(race.winner(), timed_race(key, row, temperature, min_p, last))
                  << "spread " << spread << ", temperature " << temperature << ", " << size
                  << " logits, min_p " << min_p;
            }
          }
        }
      }
    }
  }
}

TEST(TokenRace, TheOrderOfEnteringDoesNotMatter) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal(0, 2);
  std::vector<float> row(500);
  for (float& logit : row) logit = normal(random);
  const float best = row[best_logit(row)];
  for (uint64_t key = 1; key <= 50; ++key) {
    TokenRace forwards(key, best, 0.8f, 0), backwards(key, best, 0.8f, 0);
    forwards.enter_all(row);
    for (size_t i = row.size(); i-- > 0;) backwards.enter(row[i], static_cast<int32_t>(i));
    EXPECT_EQ(forwards.winner(), backwards.winner());
  }
}

TEST(TokenRace, NobodyEnteredNobodyWon) {
  TokenRace race(1, 0.0f, 1.0f, 0);
  EXPECT_EQ(race.winner(), -1);
  race.enter_all(std::vector<float>{-kInf, std::nanf("")});
  EXPECT_EQ(race.winner(), -1);
}

}  // namespace
}  // namespace tandem
