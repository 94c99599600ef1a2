// AttentionWorker over a model of several state groups: a window, pending inputs and compressed entries.
// However a prompt is chunked, spread over lanes, pushed out and computed again: the bits of token by token.
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "attention/attention_worker.h"
#include "attention/attention_worker_testing.h"
#include "attention/state_pool_size.h"
#include "model/model_test_support.h"

namespace tandem {
namespace {

struct Setup {
  uint32_t max_num_seqs = 6, max_num_batched_tokens = 64;
  uint32_t pool_tokens = 0;  // 0: what all sequences can fill
  LaneOptions lanes = {};
  std::optional<uint32_t> late = {};  // seed of a LatePort
  Drafter* drafter = nullptr;
};

class Served {
 public:
  Served(const test::TestModel& loaded, const Setup& setup) : config_(loaded.config) {
    block_ = MoeBlock::create(moe_shape(config_), moe_layers(config_, *loaded.weights), {}, test::kernels())
                 .value();
    if (setup.late) {
      port_ = std::make_unique<LatePort>(*block_, *setup.late);
    } else {
      port_ = std::make_unique<LocalFfn>(*block_);
    }
    AttentionWorkerOptions options;
    options.scheduler = {setup.max_num_seqs, setup.max_num_batched_tokens};
    options.max_context_tokens = 512;
    options.vocab_size = config_.vocab_size;
    options.lanes = setup.lanes;
    options.drafter = setup.drafter;
    options.speculation.num_tokens = setup.drafter == nullptr ? 0 : kMaxDraftTokens;
    const uint32_t decode_rows = setup.max_num_seqs * (1 + options.speculation.num_tokens);
    const std::span<const StateGroupSpec> groups = loaded.model->state_groups();
    const StatePoolLimits limits{setup.max_num_seqs, setup.max_num_batched_tokens, 512};
    std::vector<uint32_t> sizes;
    for (const uint64_t blocks : blocks_for_tokens(
             groups, setup.pool_tokens == 0 ? 512 * setup.max_num_seqs : setup.pool_tokens, limits))
      sizes.push_back(static_cast<uint32_t>(blocks));
    StatePools pools = StatePools::create(groups, sizes).value();
    const StateCaches caches = pools.caches();
    AttentionPrograms programs;
    const auto build = [&](uint32_t rows, uint32_t logits) {
      return loaded.model->build({rows, logits}, port_->traits(), caches, nullptr).value();
    };
    programs.decode = build(decode_rows, decode_rows);
    programs.prefill =
        build(setup.max_num_batched_tokens, std::min(setup.max_num_batched_tokens, setup.max_num_seqs));
    worker = AttentionWorker::create(options, std::move(pools), programs, test::kernels(), *port_).value();
  }

  struct Answer {
    std::vector<int32_t> prompt, tokens;
    uint64_t hash = 0;
    bool operator==(const Answer&) const = default;
  };
  // Prompts of a token, up to the window and beyond, and over one and two entries of the widest ratio.
  std::vector<Answer> answer_all() {
    std::vector<std::shared_ptr<Recorder>> recorders;
    std::vector<Answer> answers;
    uint32_t seed = 0;
    for (const uint32_t length : {115u, 127u, 1u, 23u, 128u, 129u, 260u, 3u}) {
      GenerationRequest request;
      std::mt19937 random(++seed);
      for (uint32_t i = 0; i < length; ++i)
        request.prompt.push_back(static_cast<int32_t>(random() % config_.vocab_size));
      answers.push_back({request.prompt, {}});
      request.sampling.temperature = 0;
      request.sampling.max_tokens = 24;
      request.hash_logits = true;
      recorders.push_back(std::make_shared<Recorder>());
      EXPECT_TRUE(worker->submit(std::move(request), recorders.back()));
    }
    for (size_t i = 0; i < recorders.size(); ++i) {
      const Finish finish = recorders[i]->wait();
      EXPECT_EQ(finish.reason, FinishReason::length) << finish.error.message;
      answers[i].tokens = recorders[i]->tokens();
      answers[i].hash = finish.logits_hash;
      EXPECT_EQ(answers[i].tokens.size(), 24u);
    }
    EXPECT_EQ(worker->stats().kv_blocks_used, 0u);
    return answers;
  }

 private:
  ModelConfig config_;
  std::unique_ptr<MoeBlock> block_;
  std::unique_ptr<FfnPort> port_;

 public:
  std::unique_ptr<AttentionWorker> worker;  // ends first: its thread uses the port
};

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
