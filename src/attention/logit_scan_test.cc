#include "attention/logit_scan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

namespace tandem {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// Rows with ties (steps of `step`) and with what models give when something overflowed.
std::vector<float> random_row(std::mt19937& random, size_t size, float step, bool special) {
  std::normal_distribution<float> normal(0, 3);
  std::vector<float> row(size);
  for (float& logit : row) {
    logit = step > 0 ? std::round(normal(random) / step) * step : normal(random);
    if (special && random() % 16 == 0) logit = random() % 2 == 0 ? -kInf : kNaN;
  }
  return row;
}

// All finite ones, sorted.
std::vector<LogitCandidate> sorted(const std::vector<float>& row) {
  std::vector<LogitCandidate> all;
  for (size_t i = 0; i < row.size(); ++i) {
    if (std::isfinite(row[i])) all.push_back({row[i], static_cast<int32_t>(i)});
  }
  std::sort(all.begin(), all.end(), better);
  return all;
}

class Rows : public testing::Test {
 protected:
  template <class Body>
  void for_rows(const Body& body) {
    std::mt19937 random(7);
    for (size_t size : {1, 2, 15, 63, 64, 65, 200, 1000, 151936}) {
      for (float step : {0.0f, 0.5f}) {
        for (bool special : {false, true}) {
          std::vector<float> row = random_row(random, size, step, special);
          if (sorted(row).empty()) row[0] = 1.0f;
          SCOPED_TRACE(testing::Message() << size << " logits, step " << step << ", special " << special);
          body(row);
        }
      }
    }
  }
};

TEST_F(Rows, TheBestIsTheFirstOfTheSortedOnes) {
  for_rows([](const std::vector<float>& row) {
    EXPECT_EQ(best_logit(row), static_cast<size_t>(sorted(row).front().token));
  });
  EXPECT_EQ(best_logit(std::vector<float>(70, kNaN)), 70u);
  EXPECT_EQ(best_logit(std::vector<float>(70, -kInf)), 70u);
  EXPECT_EQ(best_logit(std::vector<float>{}), 0u);
}

TEST_F(Rows, TheBestOnesAreTheBeginOfTheSortedOnes) {
  std::vector<LogitCandidate> got = {{9.0f, 9}};  // is replaced
  for_rows([&](const std::vector<float>& row) {
    const std::vector<LogitCandidate> all = sorted(row);
    for (size_t count : {size_t{0}, size_t{1}, size_t{50}, row.size()}) {
      best_logits(row, count, got);
      ASSERT_EQ(got.size(), std::min(count, all.size()));
      for (size_t i = 0; i < got.size(); ++i) {
        ASSERT_EQ(got[i].token, all[i].token);
        ASSERT_EQ(got[i].logit, all[i].logit);
      }
    }
  });
}

TEST_F(Rows, TheNucleusIsTheShortestBeginWithTheShare) {
  std::vector<LogitCandidate> scratch;
  for_rows([&](const std::vector<float>& row) {
    const std::vector<LogitCandidate> all = sorted(row);
    for (float temperature : {0.05f, 1.0f, 30.0f}) {
      for (float top_p : {1e-8f, 0.3f, 0.95f, 0.9999f}) {
        double total = 0;
        const auto weight = [&](const LogitCandidate& candidate) {
          return std::exp((static_cast<double>(candidate.logit) - all.front().logit) / temperature);
        };
        for (const LogitCandidate& candidate : all) total += weight(candidate);
        const LogitCandidate last = last_of_nucleus(row, all.front().logit, temperature, top_p, scratch);
        double before = 0, with = 0;
        for (const LogitCandidate& candidate : all) {
          if (better(last, candidate)) break;
          before = with;
          with += weight(candidate);
        }
        constexpr double kRounding = 2e-6;
        ASSERT_GE(with, total * (top_p - kRounding)) << top_p << ", temperature " << temperature;
        ASSERT_LE(before, total * (top_p + kRounding)) << top_p << ", temperature " << temperature;
      }
    }
  });
}

}  // namespace
}  // namespace tandem
