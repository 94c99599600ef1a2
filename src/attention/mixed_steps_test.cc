// Mixed steps on a simulated machine: what steps of so many rows take is a formula, with noise.
#include "attention/mixed_steps.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>
#include <vector>

namespace tandem {
namespace {

struct Machine {
  std::function<double(uint32_t)> step;  // seconds of a step of so many rows
  uint32_t own_rows = 512;               // of a prompt's own step
  double noise = 0;                      // of each time, relative
};

struct Outcome {
  double rows_per_second = 0;  // of prompts, where steps were mixed or decode rows alone
  double p99_gap = 0;          // in decode steps
  uint32_t mixed = 0, alone = 0, apart = 0;
};

// A prompt without end beside `sequences`.
Outcome run(const Machine& machine, uint32_t sequences, double ratio, uint32_t most = 504) {
  MixedSteps mixes;
  std::mt19937 random(5);
  const auto seconds = [&](uint32_t rows) {
    return machine.step(rows) * (1 + machine.noise * (static_cast<double>(random() % 2000) / 1000 - 1));
  };
  mixes.add_prefill_step(machine.own_rows, seconds(machine.own_rows));
  Outcome outcome;
  double clock = 0, rows = 0;
  std::vector<double> gaps;
  for (int i = 0; i < 400; ++i) {
    const MixedPlan plan = mixes.plan(sequences, ratio, most);
    if (plan.mix == StepMix::apart) {
      ++outcome.apart;
      mixes.add_decode_step(sequences, seconds(sequences));
      mixes.add_prefill_step(machine.own_rows, seconds(machine.own_rows));
      continue;
    }
    const double took = seconds(sequences + plan.prompt_rows);
    EXPECT_LE(plan.prompt_rows, most);
    EXPECT_EQ(plan.prompt_rows > 0, plan.mix == StepMix::mixed);
    if (plan.mix == StepMix::mixed) {
      ++outcome.mixed;
      mixes.add_mixed_step(plan.prompt_rows, took);
    } else {
      ++outcome.alone;
      mixes.add_decode_step(sequences, took);
    }
    clock += took;
    rows += plan.prompt_rows;
    gaps.push_back(took / machine.step(sequences));
  }
  std::ranges::sort(gaps);
  outcome.rows_per_second = clock > 0 ? rows / clock : 0;
  outcome.p99_gap = gaps.empty() ? 0 : gaps[gaps.size() * 99 / 100];
  return outcome;
}

// Measured on GraniteMoE-1b, 2 cores: 8 rows 62 ms, 32 rows 98, 64 rows 161, 512 rows 1,116.
double read_then_compute(uint32_t rows) {
  return std::max(0.0535 + 0.0011 * rows, 0.030 + 0.00206 * rows);
}

TEST(MixedSteps, RowsBesideReadsCostLessThanTheirOwnSteps) {
  const Machine machine{read_then_compute};
  const double between = machine.own_rows / read_then_compute(machine.own_rows) / 3;
  for (const double noise : {0.0, 0.1}) {
    const Outcome outcome = run({read_then_compute, 512, noise}, 8, 0.5);
    EXPECT_GT(outcome.rows_per_second, 1.4 * between);
    EXPECT_LT(outcome.p99_gap, 1.55 + 3 * noise);
    EXPECT_EQ(outcome.apart, 0u);
    EXPECT_LT(outcome.alone * (noise == 0 ? 40 : 25), outcome.mixed);
  }
}

// Many prompts beside one answer, then one prompt beside eight: what the long steps took is not held against
// the short ones.
TEST(MixedSteps, AnotherLoadBeginsAnew) {
  MixedSteps mixes;
  mixes.add_prefill_step(512, 1.1);
  const auto steps = [&](uint32_t sequences, double ratio, int count) {
    uint32_t mixed = 0;
    for (int i = 0; i < count; ++i) {
      const MixedPlan plan = mixes.plan(sequences, ratio, 500);
      const double seconds = read_then_compute(sequences + plan.prompt_rows);
      if (plan.mix == StepMix::mixed) {
        ++mixed;
        mixes.add_mixed_step(plan.prompt_rows, seconds);
      } else {
        mixes.add_decode_step(sequences, seconds);
      }
    }
    return mixed;
  };
  EXPECT_GT(steps(7, 6, 14), 12u);
  EXPECT_GT(steps(8, 0.5, 14), 12u);
}

// A memory that has become slower: rows pay for it for two steps.
TEST(MixedSteps, ASlowerDecodeStepIsNoticed) {
  MixedSteps mixes;
  mixes.add_prefill_step(512, 1.1);
  for (int i = 0; i < 8; ++i) mixes.add_decode_step(8, 0.06);
  for (int i = 0; i < 20; ++i) {
    const MixedPlan plan = mixes.plan(8, 0.5, 500);
    ASSERT_EQ(plan.mix, StepMix::mixed);
    mixes.add_mixed_step(plan.prompt_rows, read_then_compute(8 + plan.prompt_rows));
  }
  for (int i = 0; i < 2; ++i) {
    const MixedPlan plan = mixes.plan(8, 0.5, 500);
    ASSERT_EQ(plan.mix, StepMix::mixed);
    mixes.add_mixed_step(plan.prompt_rows, 0.05 + read_then_compute(8 + plan.prompt_rows));
  }
  EXPECT_EQ(mixes.plan(8, 0.5, 500).mix, StepMix::alone);
}

// Prompts' own steps beside decode steps count, so that mixing is tried again.
TEST(MixedSteps, GoingApartEnds) {
  MixedSteps mixes;
  mixes.add_prefill_step(512, 0.1);  // a row costs 0.2 ms there, and 4 ms here
  EXPECT_FALSE(mixes.goes_apart());
  mixes.add_decode_step(8, 0.01);
  for (int i = 0; i < 200; ++i) {
    const MixedPlan plan = mixes.plan(8, 0.5, 500);
    if (plan.mix == StepMix::apart) break;
    if (plan.mix == StepMix::mixed) mixes.add_mixed_step(plan.prompt_rows, 0.01 + 0.004 * plan.prompt_rows);
    if (plan.mix == StepMix::alone) mixes.add_decode_step(8, 0.01);
  }
  uint32_t apart = 0;
  while (mixes.goes_apart()) ++apart;
  EXPECT_EQ(apart, 8u);
  EXPECT_NE(mixes.plan(8, 0.5, 500).mix, StepMix::apart);
}

// A decode step that takes something else than before is measured again soon, until it is known.
TEST(MixedSteps, ADecodeStepThatHasChangedIsMeasuredAgain) {
  MixedSteps mixes;
  mixes.add_prefill_step(512, 1.1);
  for (int i = 0; i < 8; ++i) mixes.add_decode_step(8, 0.06);
  const auto steps_until_measured = [&](double seconds) {
    uint32_t mixed = 0;
    for (; mixes.plan(8, 0.5, 500).mix == StepMix::mixed; ++mixed) mixes.add_mixed_step(20, 0.09);
    mixes.add_decode_step(8, seconds);
    return mixed;
  };
  EXPECT_EQ(steps_until_measured(0.06), 64u);
  EXPECT_EQ(steps_until_measured(0.09), 64u);  // and now it takes longer
  EXPECT_EQ(steps_until_measured(0.09), 16u);
  uint32_t measured = 0;
  while (steps_until_measured(0.09) < 64) ++measured;
  EXPECT_LE(measured, 12u);
}

TEST(MixedSteps, AHigherShareTakesMoreRowsAndRoomIsALimit) {
  const Machine machine{read_then_compute};
  EXPECT_GT(run(machine, 8, 4).rows_per_second, 1.5 * run(machine, 8, 0.5).rows_per_second);
  EXPECT_GT(run(machine, 8, 0.5, 30).mixed, 300u);
  // So few rows a step are less than prompts get between decode steps for four fifths of the time.
  EXPECT_GT(run(machine, 8, 4, 30).apart, 150u);
}

// Rows that come along cost more than in a step of their own (each chunk reads a long context again).
TEST(MixedSteps, PromptsGoApartWhereThatIsFaster) {
  const auto step = [](uint32_t rows) { return rows < 100 ? 0.01 + 0.004 * rows : 0.2 + 0.001 * rows; };
  const Outcome outcome = run({step}, 8, 0.5);
  EXPECT_GT(outcome.apart * 2, outcome.mixed);
  EXPECT_GT(outcome.mixed, 0u) << "it is tried again";
}

TEST(MixedSteps, OtherSequencesAreMeasured) {
  MixedSteps mixes;
  EXPECT_EQ(mixes.plan(8, 0.5, 500).mix, StepMix::alone);
  mixes.add_decode_step(8, 0.06);
  EXPECT_EQ(mixes.plan(8, 0.5, 500).mix, StepMix::mixed);
  EXPECT_EQ(mixes.plan(10, 0.5, 500).mix, StepMix::mixed);
  EXPECT_EQ(mixes.plan(11, 0.5, 500).mix, StepMix::alone);
  EXPECT_EQ(mixes.plan(5, 0.5, 500).mix, StepMix::alone);
  mixes.add_decode_step(32, 0.1);
  EXPECT_EQ(mixes.plan(32, 0.5, 500).mix, StepMix::mixed);
  EXPECT_EQ(mixes.plan(32, 0, 500).mix, StepMix::apart);
  EXPECT_EQ(mixes.plan(32, 0.5, 0).mix, StepMix::apart);
}

TEST(MixedSteps, TheEndOfAPromptIsNoMeasurement) {
  MixedSteps mixes;
  mixes.add_prefill_step(512, 1.1);
  mixes.add_decode_step(8, 0.06);
  for (int i = 0; i < 12; ++i) {
    const MixedPlan plan = mixes.plan(8, 0.5, 500);
    mixes.add_mixed_step(plan.prompt_rows, read_then_compute(8 + plan.prompt_rows));
  }
  const uint32_t before = mixes.plan(8, 0.5, 500).prompt_rows;
  EXPECT_GT(before, 20u);
  mixes.add_mixed_step(1, 0.09);
  EXPECT_EQ(mixes.plan(8, 0.5, 500).prompt_rows, before);
}

// A stall is no reason to give prompts nothing for long.
TEST(MixedSteps, AStallIsForgotten) {
  MixedSteps mixes;
  mixes.add_prefill_step(512, 1.1);
  mixes.add_decode_step(8, 0.06);
  uint32_t rows = 0;
  for (int i = 0; i < 30; ++i) {
    MixedPlan plan = mixes.plan(8, 0.5, 500);
    if (plan.mix == StepMix::alone) {
      mixes.add_decode_step(8, 0.06);
      continue;
    }
    rows = plan.prompt_rows;
    mixes.add_mixed_step(rows, i == 14 ? 2.0 : read_then_compute(8 + rows));
    if (i == 14) {
      EXPECT_GE(mixes.plan(8, 0.5, 500).prompt_rows, rows * 7 / 10);
    }
  }
  EXPECT_GT(rows, 16u);
}

}  // namespace
}  // namespace tandem
