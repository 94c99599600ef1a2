// AttentionWorker over a model of several state groups: a window, pending inputs and compressed entries.
// However a prompt is chunked, spread over lanes, pushed out and computed again: the bits of token by token.
#include "attention/attention_worker_grouped.h"

namespace tandem {
namespace {

using grouped::Served;

// One sequence, one row at a time: nothing is chunked, batched or shared.
std::vector<Served::Answer> token_by_token(const test::TestModel& loaded) {
  EXPECT_GT(loaded.model->state_groups().size(), 1u);
  Served alone(loaded, {.max_num_seqs = 1, .max_num_batched_tokens = 1});
  return alone.answer_all();
}

TEST(AttentionWorkerGroups, ChunksLanesAndPreemptionChangeNoBit) {
  const test::TestModel loaded = test::load_fixture("deepseek_v4", DType::bf16);
  const auto want = token_by_token(loaded);
  Served batched(loaded, {.max_num_seqs = 6, .max_num_batched_tokens = 512});
  EXPECT_EQ(batched.answer_all(), want);
  EXPECT_EQ(batched.worker->stats().preempted, 0u);

  // The longest request needs all three blocks of entries that there are.
  Served tight(loaded, {.max_num_seqs = 5, .max_num_batched_tokens = 37, .pool_tokens = 384});
  // Who is pushed out depends on when requests arrive.
  for (int i = 0; i < 10 && tight.worker->stats().preempted == 0; ++i) EXPECT_EQ(tight.answer_all(), want);
  EXPECT_GT(tight.worker->stats().preempted, 0u);

  for (const LaneSplit split : {LaneSplit::by_request, LaneSplit::by_token}) {
    Served lanes(loaded, {.max_num_seqs = 5,
                          .max_num_batched_tokens = 50,
                          .pool_tokens = 640,
                          .lanes = {3, false, split},
                          .late = static_cast<uint32_t>(split) + 1});
    EXPECT_EQ(lanes.answer_all(), want);
  }
}

// gpt-oss: layers that see all keys, and layers whose keys are given back behind a window. The pool of these
// has room for a window a sequence, and requests are twelve windows long.
TEST(AttentionWorkerGroups, WindowsAreGivenBackAndChangeNoBit) {
  const test::TestModel loaded = test::load_fixture("gpt_oss", DType::bf16);
  const auto want = token_by_token(loaded);
  const std::span<const StateGroupSpec> groups = loaded.model->state_groups();
  EXPECT_LT(blocks_for_tokens(groups, 512, {1, 1, 512})[1] * kTokensPerBlock, 260u);
  Served batched(loaded, {.max_num_seqs = 6, .max_num_batched_tokens = 512});
  EXPECT_EQ(batched.answer_all(), want);
  Served tight(loaded, {.max_num_seqs = 5, .max_num_batched_tokens = 37, .pool_tokens = 300});
  for (int i = 0; i < 10 && tight.worker->stats().preempted == 0; ++i) EXPECT_EQ(tight.answer_all(), want);
  EXPECT_GT(tight.worker->stats().preempted, 0u);
}

// Rows that are written, read by others, and forgotten: over the ends of entries, blocks and the window.
TEST(AttentionWorkerGroups, RollbackChangesNoBit) {
  const test::TestModel loaded = test::load_fixture("deepseek_v4", DType::bf16);
  const auto want = token_by_token(loaded);
  uint64_t refused = 0;
  for (const double truth : {0.0, 0.6, 1.0}) {
    Prophet prophet(truth, 3);
    for (const Served::Answer& answer : want) prophet.learn(answer.prompt, answer.tokens);
    Served served(loaded, {.max_num_seqs = 5,
                           .max_num_batched_tokens = 50,
                           .pool_tokens = truth == 0.6 ? 384u : 0u,
                           .drafter = &prophet});
    EXPECT_EQ(served.answer_all(), want) << truth;
    const SpeculationStats stats = served.worker->stats().speculation;
    EXPECT_EQ(truth > 0, stats.accepted > 0);
    refused += stats.drafted - stats.accepted;
  }
  EXPECT_GT(refused, 100u);
}

}  // namespace
}  // namespace tandem
