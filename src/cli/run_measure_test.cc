#include "cli/run_measure.h"

#include <gtest/gtest.h>

namespace tandem {
namespace {

TEST(RunMeasure, MeansAreOfRequestsAndRatesOfTheRun) {
  const std::vector<AnswerTimes> answers = {{0.5, 2.5, 100, 5, false}, {1.5, 2.5, 300, 3, false}};
  const RunMeasure run = measure_run(answers, 4);
  EXPECT_DOUBLE_EQ(run.e2e_ms, 2500);
  EXPECT_DOUBLE_EQ(run.ttft_ms, 1000);
  EXPECT_DOUBLE_EQ(run.tpot_ms, 500);  // (2 s / 4 + 1 s / 2) / 2
  EXPECT_DOUBLE_EQ(run.prefill_tokens_per_second, 100);
  EXPECT_DOUBLE_EQ(run.output_tokens_per_second, 2);
  EXPECT_DOUBLE_EQ(run.total_tokens_per_second, 102);
  EXPECT_EQ(run.failed, 0u);
}

TEST(RunMeasure, AFailedRequestIsCountedAndNotAveraged) {
  const std::vector<AnswerTimes> answers = {{0.5, 1, 10, 2, false}, {0, 0.001, 10, 0, true}};
  const RunMeasure run = measure_run(answers, 1);
  EXPECT_EQ(run.failed, 1u);
  EXPECT_EQ(run.requests, 2u);
  EXPECT_DOUBLE_EQ(run.e2e_ms, 1000);
  EXPECT_EQ(run.output_tokens, 2u);
  const RunMeasure none = measure_run(std::span(answers).subspan(1), 1);
  EXPECT_EQ(none.e2e_ms, 0);
  EXPECT_EQ(none.total_tokens_per_second, 0);
}

TEST(RunMeasure, AnAnswerOfOneTokenHasNoTimePerToken) {
  const std::vector<AnswerTimes> answers = {{0.5, 0.5, 10, 1, false}, {0.5, 1.5, 10, 3, false}};
  EXPECT_DOUBLE_EQ(measure_run(answers, 1).tpot_ms, 500);
}

}  // namespace
}  // namespace tandem
