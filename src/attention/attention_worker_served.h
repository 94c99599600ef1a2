// A worker over a tiny model with random weights, colocated, with everything that a test may turn: what the
// tests of AttentionWorker share.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <optional>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "attention/attention_worker.h"
#include "attention/attention_worker_testing.h"
#include "model/model.h"
#include "moe/local_ffn.h"

namespace tandem::test {

inline std::string file_text(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// A worker over a tiny model with random weights.
struct Served {
  struct Limits {
    uint32_t num_blocks = 400, max_num_seqs = 8, max_num_batched_tokens = 32, max_context = 200,
             max_queue = 1000;
    std::vector<int32_t> eos = {};
    LaneOptions lanes = {};
    std::optional<uint32_t> late = {};  // seed of a LatePort
    SpeculationOptions speculation = {};
    Drafter* drafter = nullptr;
    const char* fixture = "qwen3_moe";
    bool captures = false;  // decode programs of 4 and 12 rows
    GrammarCache::LoadVocabulary vocabulary = nullptr;
    bool prefix_caching = true;
    TraceRing* trace = nullptr;
  };
  Served() : Served(Limits()) {}
  explicit Served(const Limits& limits)
      : pool(2), runner(*KernelRunner::create(**choose_kernel_table(), pool)) {
    const std::string folder = std::string("tests/fixtures/") + limits.fixture;
    config = *parse_model_config(file_text(folder + "/config.json"), folder);
    const bool model_drafts = limits.speculation.num_tokens > 0 && limits.drafter == nullptr;
    if (model_drafts) config.hold_drafts();
    LoadOptions load;
    load.show_progress = false;
    auto loaded = load_model_weights(folder, config, runner.table(), pool, load);
    EXPECT_TRUE(loaded.has_value()) << loaded.error().message;
    weights = std::move(*loaded);
    model.emplace(*Model::create(config, weights));
    const auto layers = moe_layers(config, weights);
    block = *MoeBlock::create(moe_shape(config), layers, MoeBlockOptions{}, runner);
    port = std::make_unique<LosablePort>(*block);
    if (limits.late) late = std::make_unique<LatePort>(*block, *limits.late);
    StatePools pools = *StatePools::create(model->state_groups(), {{limits.num_blocks}});
    AttentionWorkerOptions options;
    options.scheduler = {limits.max_num_seqs, limits.max_num_batched_tokens};
    options.max_context_tokens = limits.max_context;
    options.max_queue = limits.max_queue;
    options.vocab_size = config.vocab_size;
    options.eos_token_ids = limits.eos;
    options.lanes = limits.lanes;
    options.speculation = limits.speculation;
    options.drafter = limits.drafter;
    options.vocabulary = limits.vocabulary;
    options.prefix_caching = limits.prefix_caching;
    options.trace = limits.trace;
    const StateCaches& caches = pools.caches();
    AttentionPrograms programs;
    if (model_drafts && config.draft.kind == DraftKind::dspark) {
      options.speculation.block = {config.draft.block_size, config.compressed.window,
                                   config.draft.noise_token_id};
    }
    const LaneRows rows = rows_of_lanes(options);
    const uint32_t decode_rows = limits.max_num_seqs * (1 + limits.speculation.num_tokens);
    programs.decode = *model->build({decode_rows, decode_rows}, port->traits(), caches, nullptr);
    programs.prefill = *model->build(
        {limits.max_num_batched_tokens, std::min(limits.max_num_batched_tokens, limits.max_num_seqs)},
        port->traits(), caches, nullptr);
    for (const uint32_t size : limits.captures ? std::vector<uint32_t>{4, 12} : std::vector<uint32_t>{}) {
      programs.captured.push_back({size, *model->build({size, size}, port->traits(), caches, nullptr)});
      if (!model_drafts) continue;
      const uint32_t logits = std::min(size, rows.draft_decode.logits_capacity);
      programs.drafts.captured.push_back(
          {size, *model->build_drafts({size, logits}, port->traits(), caches, nullptr)});
    }
    if (model_drafts) {
      programs.drafts.decode = *model->build_drafts(rows.draft_decode, port->traits(), caches, nullptr);
      programs.drafts.prefill = *model->build_drafts(rows.draft_prefill, port->traits(), caches, nullptr);
      if (options.speculation.block.size > 0)
        programs.drafts.chain = *model->build_draft_chain(rows.draft_sequences, port->traits(), caches);
    }
    FfnPort& used = late ? static_cast<FfnPort&>(*late) : *port;
    worker = *AttentionWorker::create(options, std::move(pools), std::move(programs), runner, used);
  }

  GenerationRequest request(uint32_t seed, uint32_t prompt_tokens, uint32_t max_tokens) const {
    std::mt19937 random(seed);
    GenerationRequest made;
    for (uint32_t i = 0; i < prompt_tokens; ++i)
      made.prompt.push_back(static_cast<int32_t>(random() % config.vocab_size));
    made.sampling.temperature = 0;
    made.sampling.max_tokens = max_tokens;
    made.hash_logits = true;
    return made;
  }
  std::shared_ptr<Recorder> submit(const GenerationRequest& request, RequestId* id = nullptr) {
    return submit(request, std::make_shared<Recorder>(), id);
  }
  std::shared_ptr<Recorder> submit(const GenerationRequest& request, std::shared_ptr<Recorder> recorder,
                                   RequestId* id = nullptr) {
    const auto submitted = worker->submit(request, recorder);
    EXPECT_TRUE(submitted.has_value()) << submitted.error().message;
    if (id != nullptr) *id = submitted.value_or(0);
    return recorder;
  }
  // Six requests that nothing but `port->lost` ends: it is, at token `number` of the first, when all are
  // here.
  std::vector<std::shared_ptr<Recorder>> submit_and_lose(uint32_t max_tokens, size_t number) {
    std::vector<std::shared_ptr<Recorder>> open;
    const auto first = std::make_shared<Recorder>();
    AllAtOnce all(*first);
    first->at_token(number, [this] { port->lost = true; });
    for (uint32_t i = 0; i < 6; ++i) {
      open.push_back(submit(request(i, 10, max_tokens), i == 0 ? first : std::make_shared<Recorder>()));
    }
    all.go();
    first->wait();
    return open;
  }
  std::string refusal(const GenerationRequest& request) {
    const auto result = worker->submit(request, std::make_shared<Recorder>());
    return result ? std::string() : result.error().message;
  }

  ThreadPool pool;
  KernelRunner runner;
  ModelConfig config;
  ModelWeights weights;
  std::optional<Model> model;
  std::unique_ptr<MoeBlock> block;
  std::unique_ptr<LosablePort> port;
  std::unique_ptr<LatePort> late;
  std::unique_ptr<AttentionWorker> worker;
};

struct Answer {
  std::vector<int32_t> tokens;
  uint64_t hash;
  bool operator==(const Answer&) const = default;
};

inline std::vector<Answer> answer_all(Served& served, bool one_by_one) {
  std::vector<std::shared_ptr<Recorder>> recorders;
  std::vector<Answer> answers;
  const auto first = std::make_shared<Recorder>();
  AllAtOnce all(*first);
  if (one_by_one) all.go();
  for (uint32_t i = 0; i < 12; ++i) {
    recorders.push_back(
        served.submit(served.request(i, 1 + i * 7, 20), i == 0 ? first : std::make_shared<Recorder>()));
    if (one_by_one) recorders.back()->wait();
  }
  if (!one_by_one) all.go();
  for (const auto& recorder : recorders) {
    const Finish finish = recorder->wait();
    EXPECT_EQ(finish.reason, FinishReason::length);
    EXPECT_EQ(finish.completion_tokens, 20u);
    answers.push_back({recorder->tokens(), finish.logits_hash});
  }
  EXPECT_EQ(served.worker->stats().kv_blocks_used, 0u);
  return answers;
}

}  // namespace tandem::test
