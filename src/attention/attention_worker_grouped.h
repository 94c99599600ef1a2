// A worker over a model of several state groups (DeepSeek-V4), colocated, with what a test may turn, and a
// set of requests whose answers must have the same bits in every setup.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "attention/attention_worker.h"
#include "attention/attention_worker_testing.h"
#include "attention/state_pool_size.h"
#include "model/model_test_support.h"

namespace tandem::grouped {

struct Setup {
  uint32_t max_num_seqs = 6, max_num_batched_tokens = 64;
  uint32_t pool_tokens = 0;  // 0: what all sequences can fill
  LaneOptions lanes = {};
  std::optional<uint32_t> late = {};  // seed of a LatePort
  Drafter* drafter = nullptr;
  // Of the model's own drafter.
  uint32_t num_drafts = 0;
  bool automatic = false;
  std::vector<uint32_t> captures = {};  // rows of decode programs
  bool prefix_caching = true;
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
    options.prefix_caching = setup.prefix_caching;
    options.drafter = setup.drafter;
    options.speculation.num_tokens = setup.drafter == nullptr ? setup.num_drafts : kMaxDraftTokens;
    options.speculation.automatic = setup.automatic;
    if (setup.num_drafts > 0) {
      options.speculation.block = {config_.draft.block_size, config_.compressed.window,
                                   config_.draft.noise_token_id};
    }
    const LaneRows rows = rows_of_lanes(options);
    const std::span<const StateGroupSpec> groups = loaded.model->state_groups();
    const StatePoolLimits limits{setup.max_num_seqs, setup.max_num_batched_tokens, 512};
    std::vector<uint32_t> sizes;
    for (const uint64_t blocks : blocks_for_tokens(
             groups, setup.pool_tokens == 0 ? 512 * setup.max_num_seqs : setup.pool_tokens, limits))
      sizes.push_back(static_cast<uint32_t>(blocks));
    StatePools pools = StatePools::create(groups, sizes).value();
    const StateCaches caches = pools.caches();
    AttentionPrograms programs;
    const FfnTraits& traits = port_->traits();
    const auto build = [&](uint32_t most, uint32_t logits) {
      return loaded.model->build({most, logits}, traits, caches, nullptr).value();
    };
    programs.decode = build(rows.decode, rows.decode);
    programs.prefill = build(rows.prefill, std::min(rows.prefill, setup.max_num_seqs));
    for (const uint32_t size : setup.captures) programs.captured.push_back({size, build(size, size)});
    if (setup.num_drafts > 0) {
      const auto drafts = [&](const ProgramShape& shape) {
        return loaded.model->build_drafts(shape, traits, caches, nullptr).value();
      };
      programs.drafts.decode = drafts(rows.draft_decode);
      programs.drafts.prefill = drafts(rows.draft_prefill);
      for (const uint32_t size : setup.captures) {
        const uint32_t logits = std::min(size, rows.draft_decode.logits_capacity);
        programs.drafts.captured.push_back({size, drafts({size, logits})});
      }
      programs.drafts.chain = loaded.model->build_draft_chain(rows.draft_sequences, traits, caches).value();
    }
    worker = AttentionWorker::create(options, std::move(pools), programs, test::kernels(), *port_).value();
  }

  struct Answer {
    std::vector<int32_t> prompt, tokens;
    uint64_t hash = 0;
    bool operator==(const Answer&) const = default;
  };
  // `sampled`: every second one is, by its own seed. Prompts of a token, up to the window and beyond, and
  // over one and two entries of the widest ratio.
  std::vector<Answer> answer_all(bool sampled = false) {
    std::vector<std::shared_ptr<Recorder>> recorders;
    std::vector<Answer> answers;
    const auto first = std::make_shared<Recorder>();
    AllAtOnce all(*first);
    uint32_t seed = 0;
    for (const uint32_t length : {115u, 127u, 1u, 23u, 128u, 129u, 260u, 3u}) {
      GenerationRequest request;
      std::mt19937 random(++seed);
      for (uint32_t i = 0; i < length; ++i)
        request.prompt.push_back(static_cast<int32_t>(random() % config_.vocab_size));
      answers.push_back({request.prompt, {}});
      request.sampling.temperature = sampled && seed % 2 == 0 ? 0.6f : 0.0f;
      request.sampling.seed = seed;
      request.sampling.max_tokens = 24;
      request.hash_logits = true;
      recorders.push_back(recorders.empty() ? first : std::make_shared<Recorder>());
      EXPECT_TRUE(worker->submit(std::move(request), recorders.back()));
    }
    all.go();
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

}  // namespace tandem::grouped
