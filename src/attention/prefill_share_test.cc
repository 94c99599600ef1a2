// Turns of prompts and answers on a simulated clock: the thread runs one operation at a time, decode steps
// cannot be cut, and prompts are cut between operations.
#include "attention/prefill_share.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace tandem {
namespace {

struct Load {
  double decode_step, operation;  // seconds
  uint32_t prefilling = 1, decoding = 8;
  double least = 1.0 / 3;
  double noise = 0;  // of each time, relative
};

struct Outcome {
  double share = 0;               // of prompts
  double p99_gap = 0, worst = 0;  // between two decode steps' ends, in decode steps
};

// A minute of the engine's thread as AttentionWorker runs it.
Outcome run(const Load& load) {
  PrefillShare share(load.least);
  std::mt19937 random(3);
  const auto noisy = [&](double seconds) {
    return seconds * (1 + load.noise * (static_cast<double>(random() % 2000) / 1000 - 1));
  };
  double clock = 0, prefill = 0, last_end = 0;
  std::vector<double> gaps;
  while (clock < 60) {
    share.set_load(load.prefilling, load.decoding);
    if (share.prefill_goes_first()) {
      const double end = clock + share.slice();
      do {
        const double took = noisy(load.operation);
        clock += took;
        prefill += took;
        share.add_prefill(took);
      } while (clock < end);
      continue;
    }
    const double took = noisy(load.decode_step);
    clock += took;
    share.add_decode(took);
    share.end_decode_step();
    gaps.push_back((clock - last_end) / load.decode_step);
    last_end = clock;
  }
  std::ranges::sort(gaps);
  return {prefill / clock, gaps[gaps.size() * 99 / 100], gaps.back()};
}

TEST(PrefillShare, ALongPromptAmongAnswersStretchesTheirGapsByAHalf) {
  for (const double noise : {0.0, 0.2}) {
    const Outcome outcome = run({.decode_step = 0.01, .operation = 0.0002, .noise = noise});
    EXPECT_NEAR(outcome.share, 1.0 / 3, 0.01);
    EXPECT_LT(outcome.p99_gap, 1.55 + 2 * noise);
    EXPECT_LT(outcome.worst, 1.6 + 3 * noise);
  }
}

TEST(PrefillShare, AnOperationThatTakesLongIsPaidBack) {
  // Of 7 decode steps: there is nothing to cut, but the share is kept.
  const Outcome outcome = run({.decode_step = 0.01, .operation = 0.07});
  EXPECT_NEAR(outcome.share, 1.0 / 3, 0.02);
  EXPECT_LT(outcome.worst, 8.1);
}

TEST(PrefillShare, ManyPromptsAreNotHeldUpByFewAnswers) {
  EXPECT_NEAR(run({.decode_step = 0.01, .operation = 0.0002, .prefilling = 31, .decoding = 1}).share,
              31.0 / 32, 0.01);
  EXPECT_NEAR(run({.decode_step = 0.01, .operation = 0.0002, .prefilling = 4, .decoding = 4}).share, 0.5,
              0.01);
  EXPECT_NEAR(
      run({.decode_step = 0.01, .operation = 0.0002, .prefilling = 4, .decoding = 60, .least = 0.2}).share,
      0.2, 0.01);
}

TEST(PrefillShare, NoShareAtAllIsKept) {
  PrefillShare share(0);
  share.set_load(0, 5);
  share.add_decode(1);
  EXPECT_FALSE(share.prefill_goes_first());
}

TEST(PrefillShare, CreditIsNotSavedUp) {
  PrefillShare share(0.5);
  share.set_load(1, 8);
  for (int i = 0; i < 100; ++i) {
    share.add_decode(0.01);
    share.end_decode_step();
  }
  EXPECT_LT(share.slice(), 0.03);
  share.set_load(0, 8);
  EXPECT_FALSE(share.prefill_goes_first());
  EXPECT_FALSE(share.is_shared());
}

TEST(PrefillShare, ChunksAreAsLongAsALayerMayTake) {
  PrefillShare share(1.0 / 3);
  share.set_load(1, 8);
  EXPECT_EQ(share.chunk_rows(512), 512u);  // nothing is measured yet
  share.add_decode(0.1);
  share.end_decode_step();
  share.add_prefill_step(512, 48, 48 * 0.07);  // 70 ms a layer
  EXPECT_NEAR(share.chunk_rows(512), 512 * 50 / 70, 2);
  EXPECT_EQ(share.chunk_rows(64), 64u);
  share.set_load(1, 0);
  EXPECT_EQ(share.chunk_rows(512), 512u);
  share.set_load(1, 8);
  for (int i = 0; i < 50; ++i) share.add_prefill_step(512, 48, 48 * 7);
  EXPECT_EQ(share.chunk_rows(512), kLeastChunkRows);
}

}  // namespace
}  // namespace tandem
