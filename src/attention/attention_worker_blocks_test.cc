// DSpark behind the worker: blocks drafted for batches of sequences, cut where the drafter is not confident,
// verified, rolled back, pushed out. Answers are those without drafts, and drafts those of the whole text.
#include "attention/attention_worker_grouped.h"
#include "model/dspark_testing.h"

namespace tandem {
namespace {

using grouped::Served;
using test::DsparkFixture;

TEST(AttentionWorkerBlocks, ChangeNoBit) {
  const DsparkFixture files;
  const auto without = files.load(DType::bf16, /*drafts=*/false), model = files.load(DType::bf16);
  Served alone(without, {.max_num_seqs = 1, .max_num_batched_tokens = 1});
  const auto want = alone.answer_all(/*sampled=*/true);
  uint64_t preempted = 0;
  for (const uint32_t drafts : {1u, 3u, 5u}) {
    for (const uint32_t lanes : {1u, 3u}) {
      for (const bool automatic : {false, true}) {
        Served served(model,
                      {.max_num_seqs = 5,
                       .max_num_batched_tokens = 50,
                       .pool_tokens = lanes == 3 ? 384u : 0u,
                       .lanes = {lanes, false, LaneSplit::by_token},
                       .late = lanes == 3 ? std::optional(drafts) : std::nullopt,
                       .num_drafts = drafts,
                       .automatic = automatic,
                       .captures = automatic ? std::vector<uint32_t>{4, 12} : std::vector<uint32_t>{}});
        EXPECT_EQ(served.answer_all(true), want) << drafts << " drafts, " << lanes << " lanes";
        const EngineStats stats = served.worker->stats();
        const SpeculationStats& counts = stats.speculation;
        EXPECT_GT(counts.accepted, counts.drafted / 5) << "the drafter sees other rows than it should";
        EXPECT_LT(counts.accepted, counts.drafted);
        EXPECT_GT(counts.rounds, 0u);
        EXPECT_EQ(stats.execution.graph_replays > 0, automatic);
        // No draft stands beyond the number that is asked for.
        for (size_t position = drafts; position < counts.accepted_at.size(); ++position)
          EXPECT_EQ(counts.accepted_at[position], 0u);
        EXPECT_TRUE(drafts < 5 || counts.accepted_at[3] > 0);
        preempted += stats.preempted;
      }
    }
  }
  EXPECT_GT(preempted, 0u);
}

struct Counts {
  uint64_t drafted = 0, accepted = 0, cut = 0;
};

// What would be drafted and accepted for an answer, from blocks of the whole text before them.
Counts count_offline(const test::TestModel& model, const Served::Answer& answer, uint32_t num_drafts) {
  Counts counts;
  std::vector<int32_t> text = answer.prompt;
  text.insert(text.end(), answer.tokens.begin(), answer.tokens.end());
  OfflineOptions options;
  options.capacity = options.tokens_per_sequence = 512;
  const auto runner = OfflineRunner::create(*model.model, test::kernels(), options).value();
  const auto prompt = static_cast<uint32_t>(answer.prompt.size()), all = static_cast<uint32_t>(text.size());
  uint32_t computed = 0;
  for (uint32_t said = prompt + 1; said < all;) {
    std::vector<OfflineRow> rows;
    for (; computed + 1 < said; ++computed) rows.push_back({0, computed, text[computed]});
    EXPECT_TRUE(runner->run(rows));
    // The step that verifies gives one token more than it accepts.
    const uint32_t most = std::min(num_drafts, all - said - 1);
    uint32_t drafted = 0, accepted = 0;
    if (most > 0) {
      const OfflineBlock block = runner->draft_block({0, said - 2, text[said - 1]}).value();
      double likely = 1;
      for (; drafted < most; ++drafted) {
        likely *= double{block.confidences[drafted]};
        if (likely < kLeastDraftConfidence) break;
      }
      counts.cut += drafted < most ? 1 : 0;
      while (accepted < drafted && block.tokens[accepted] == text[said + accepted]) ++accepted;
    }
    counts.drafted += drafted;
    counts.accepted += accepted;
    said += accepted + 1;
  }
  return counts;
}

TEST(AttentionWorkerBlocks, DraftsAreThoseOfTheWholeText) {
  const DsparkFixture files;
  const auto model = files.load(DType::bf16);
  for (const uint32_t drafts : {2u, 5u}) {
    for (const uint32_t lanes : {1u, 3u}) {
      Served served(model, {.max_num_seqs = 7,
                            .max_num_batched_tokens = 37,
                            .lanes = {lanes, false, LaneSplit::by_token},
                            .late = lanes == 3 ? std::optional(1u) : std::nullopt,
                            .num_drafts = drafts});
      Counts want;
      for (const Served::Answer& answer : served.answer_all()) {
        const Counts counts = count_offline(model, answer, drafts);
        want.drafted += counts.drafted;
        want.accepted += counts.accepted;
        want.cut += counts.cut;
      }
      EXPECT_GT(want.cut, 0u);
      const EngineStats stats = served.worker->stats();
      ASSERT_EQ(stats.preempted, 0u);
      EXPECT_EQ(stats.speculation.drafted, want.drafted) << drafts << " drafts, " << lanes << " lanes";
      EXPECT_EQ(stats.speculation.accepted, want.accepted) << drafts << " drafts, " << lanes << " lanes";
    }
  }
}

// A block has no room at the end of the context: the answer goes on by single rows, to its last token.
TEST(AttentionWorkerBlocks, TheContextEndsInsideABlock) {
  const DsparkFixture files;
  const auto model = files.load(DType::bf16);
  Served served(model, {.num_drafts = 5});
  GenerationRequest request;
  request.prompt.assign(500, 7);
  request.sampling.temperature = 0;
  request.sampling.max_tokens = 100;
  const auto recorder = std::make_shared<Recorder>();
  ASSERT_TRUE(served.worker->submit(std::move(request), recorder));
  EXPECT_EQ(recorder->wait().reason, FinishReason::length);
  EXPECT_EQ(recorder->tokens().size(), 12u);
  EXPECT_EQ(served.worker->stats().kv_blocks_used, 0u);
}

TEST(AttentionWorkerBlocks, AChainIsNeeded) {
  const DsparkFixture files;
  const auto model = files.load(DType::bf16);
  StateCaches caches;
  std::vector<OwnedBuffer> memory;
  uint32_t group = 0;
  for (const StateGroupSpec& spec : model.model->state_groups())
    memory.push_back(allocate_state_group(spec, group++, 1, caches).value());
  const auto chain = model.model->build_draft_chain(2, FfnTraits{}, caches);
  ASSERT_TRUE(chain) << chain.error().message;
  EXPECT_EQ((*chain)->vocab_size(), DsparkFixture::kVocab);
  const auto refused =
      files.load(DType::bf16, /*drafts=*/false).model->build_draft_chain(2, FfnTraits{}, caches);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("drafts are not held"), std::string::npos);
}

}  // namespace
}  // namespace tandem
