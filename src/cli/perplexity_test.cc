#include "cli/perplexity.h"

#include <gtest/gtest.h>

#include <cmath>

namespace tandem {
namespace {

TEST(ScoreWindows, EachTokenIsScoredOnce) {
  EXPECT_EQ(score_windows(10, 6, 3), (std::vector<ScoreWindow>{{0, 1, 6}, {3, 6, 9}, {6, 9, 10}}));
  EXPECT_EQ(score_windows(6, 6, 3), (std::vector<ScoreWindow>{{0, 1, 6}}));
  EXPECT_EQ(score_windows(5, 100, 50), (std::vector<ScoreWindow>{{0, 1, 5}}));
  // Without overlap the first token of each window has no context; a last window of one token scores nothing.
  EXPECT_EQ(score_windows(7, 3, 3), (std::vector<ScoreWindow>{{0, 1, 3}, {3, 4, 6}}));
  for (uint64_t tokens = 2; tokens < 60; ++tokens) {
    for (uint64_t window = 2; window < 20; ++window) {
      for (uint64_t stride = 1; stride < window; ++stride) {
        std::vector<int> scored(tokens, 0);
        for (const ScoreWindow& part : score_windows(tokens, window, stride)) {
          EXPECT_LE(part.end - part.begin, window);
          EXPECT_LT(part.begin, part.scored);
          for (uint64_t at = part.scored; at < part.end; ++at) ++scored[at];
        }
        EXPECT_EQ(scored[0], 0);
        for (uint64_t at = 1; at < tokens; ++at)
          ASSERT_EQ(scored[at], 1) << tokens << " " << window << " " << stride << " at " << at;
      }
    }
  }
}

TEST(PerplexityScore, Units) {
  PerplexityScore score;
  score.scored = 4;
  score.bytes = 16;
  score.nats = 4 * std::log(8.0);
  EXPECT_NEAR(score.perplexity(), 8, 1e-12);
  EXPECT_NEAR(score.bits_per_token(), 3, 1e-12);
  EXPECT_NEAR(score.bits_per_byte(), 0.75, 1e-12);
  EXPECT_EQ(PerplexityScore{}.bits_per_byte(), 0);
}

}  // namespace
}  // namespace tandem
