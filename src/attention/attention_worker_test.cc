#include "attention/attention_worker.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <random>
#include <sstream>
#include <thread>

#include "attention/attention_worker_testing.h"
#include "model/model.h"
#include "model/offline_runner.h"
#include "moe/local_ffn.h"

namespace tandem {
namespace {

std::string file_text(const std::string& path) {
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
    const StateCaches& caches = pools.caches();
    AttentionPrograms programs;
    const uint32_t decode_rows = limits.max_num_seqs * (1 + limits.speculation.num_tokens);
    programs.decode = *model->build({decode_rows, decode_rows}, port->traits(), caches, nullptr);
    programs.prefill = *model->build(
        {limits.max_num_batched_tokens, std::min(limits.max_num_batched_tokens, limits.max_num_seqs)},
        port->traits(), caches, nullptr);
    for (const uint32_t size : limits.captures ? std::vector<uint32_t>{4, 12} : std::vector<uint32_t>{}) {
      programs.captured.push_back({size, *model->build({size, size}, port->traits(), caches, nullptr)});
      if (!model_drafts) continue;
      programs.drafts.captured.push_back(
          {size, *model->build_drafts({size, std::min(size, limits.max_num_seqs)}, port->traits(), caches,
                                      nullptr)});
    }
    if (model_drafts) {
      programs.drafts.decode =
          *model->build_drafts({decode_rows, limits.max_num_seqs}, port->traits(), caches, nullptr);
      programs.drafts.prefill = *model->build_drafts(
          {limits.max_num_batched_tokens, std::min(limits.max_num_batched_tokens, limits.max_num_seqs)},
          port->traits(), caches, nullptr);
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
    auto recorder = std::make_shared<Recorder>();
    const auto submitted = worker->submit(request, recorder);
    EXPECT_TRUE(submitted.has_value()) << submitted.error().message;
    if (id != nullptr) *id = submitted.value_or(0);
    return recorder;
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

std::vector<Answer> answer_all(Served& served, bool one_by_one) {
  std::vector<std::shared_ptr<Recorder>> recorders;
  std::vector<Answer> answers;
  for (uint32_t i = 0; i < 12; ++i) {
    recorders.push_back(served.submit(served.request(i, 1 + i * 7, 20)));
    if (one_by_one) recorders.back()->wait();
  }
  for (const auto& recorder : recorders) {
    const Finish finish = recorder->wait();
    EXPECT_EQ(finish.reason, FinishReason::length);
    EXPECT_EQ(finish.completion_tokens, 20u);
    answers.push_back({recorder->tokens(), finish.logits_hash});
  }
  EXPECT_EQ(served.worker->stats().kv_blocks_used, 0u);
  return answers;
}

TEST(AttentionWorker, BatchChunksLanesAndPreemptionChangeNoBit) {
  Served alone;
  const auto want = answer_all(alone, true);
  Served batched;
  EXPECT_EQ(answer_all(batched, false), want);
  // 9 blocks are 144 tokens: the longest request needs 98, so sequences push each other out all the time.
  Served tight({.num_blocks = 9, .max_num_seqs = 5, .max_num_batched_tokens = 11});
  EXPECT_EQ(answer_all(tight, false), want);
  EXPECT_GT(tight.worker->stats().preempted, 0u);
}

// Any number of lanes, either split, replies in any order, sequences that push each other out and others that
// are cancelled on the way: those that are not have the bits of running alone.
TEST(AttentionWorker, LanesChangeNoBit) {
  Served alone;
  const auto want = answer_all(alone, true);
  size_t most_waiting = 0;
  for (const LaneSplit split : {LaneSplit::by_request, LaneSplit::by_token}) {
    for (const uint32_t lanes : {1u, 2u, 3u, 5u, 8u}) {
      const uint32_t seed = lanes * 2 + static_cast<uint32_t>(split);
      Served served({.num_blocks = lanes % 2 == 0 ? 400u : 12u,
                     .max_num_seqs = 7,
                     .max_num_batched_tokens = 21,
                     .lanes = {lanes, false, split},
                     .late = seed});
      std::mt19937 random(seed);
      std::vector<std::shared_ptr<Recorder>> cancelled;
      for (uint32_t i = 0; i < 6; ++i) {
        RequestId id = 0;
        cancelled.push_back(served.submit(served.request(100 + i, 1 + random() % 60, 30), &id));
        if (i % 2 == 0) cancelled.back()->wait_for_tokens(random() % 3);
        served.worker->cancel(id);
      }
      EXPECT_EQ(answer_all(served, false), want) << lanes << " lanes, split " << static_cast<int>(split);
      for (const auto& recorder : cancelled) recorder->wait();
      most_waiting = std::max(most_waiting, served.late->most_waiting.load());
    }
  }
  EXPECT_GE(most_waiting, 8u) << "lanes never waited beside each other";
}

TEST(AttentionWorker, AutomaticLanesChangeNoBitAndBeginWithOne) {
  Served alone;
  const auto want = answer_all(alone, true);
  Served served({.max_num_seqs = 6, .lanes = {4, true, LaneSplit::by_token}, .late = 3});
  EXPECT_EQ(served.worker->stats().decode_lanes, 1u);
  EXPECT_EQ(answer_all(served, false), want);
  // Experts in this process cannot overlap: whatever is measured, one lane stays.
  Served in_place({.lanes = {4, true, LaneSplit::by_request}});
  EXPECT_EQ(answer_all(in_place, false), want);
  EXPECT_EQ(in_place.worker->stats().decode_lanes, 1u);
}

// Sampled in every way that the sampler knows, and greedy.
GenerationRequest varied_request(const Served& served, uint32_t i) {
  GenerationRequest request = served.request(i, 1 + i * 7, 20);
  SamplingParams& sampling = request.sampling;
  sampling.seed = i;
  sampling.temperature = i % 3 == 0 ? 0.0f : 0.8f;
  if (i % 4 == 1) sampling.top_p = 0.9f;
  if (i % 5 == 2) sampling.repetition_penalty = 1.3f;
  if (i % 5 == 3) sampling.frequency_penalty = 0.7f;
  if (i % 6 == 4) sampling.top_k = 20;
  if (i % 7 == 5) sampling.logit_bias = {{3, 2.0f}, {5, -2.0f}};
  sampling.top_logprobs = i % 2 == 0 ? 2 : -1;
  return request;
}

std::vector<Answer> answer_varied(Served& served, std::vector<GenerationRequest>* asked = nullptr) {
  std::vector<std::shared_ptr<Recorder>> recorders;
  std::vector<Answer> answers;
  for (uint32_t i = 0; i < 12; ++i) {
    const GenerationRequest request = varied_request(served, i);
    if (asked != nullptr) asked->push_back(request);
    recorders.push_back(served.submit(request));
  }
  for (const auto& recorder : recorders) {
    const Finish finish = recorder->wait();
    EXPECT_EQ(finish.completion_tokens, 20u);
    answers.push_back({recorder->tokens(), finish.logits_hash});
  }
  EXPECT_EQ(served.worker->stats().kv_blocks_used, 0u);
  return answers;
}

// Right and wrong drafts, in batches, in a pool that is too small, over lanes whose replies come in any
// order, always or as measured: token for token, and bit for bit, what is said without drafts.
TEST(AttentionWorker, DraftsChangeNoBit) {
  Served alone;
  std::vector<GenerationRequest> asked;
  const auto want = answer_varied(alone, &asked);
  uint64_t accepted = 0, refused = 0, preempted = 0;
  for (const double truth : {0.0, 0.7, 1.0}) {
    for (const uint32_t lanes : {1u, 3u}) {
      Prophet prophet(truth, lanes);
      for (size_t i = 0; i < want.size(); ++i) prophet.learn(asked[i].prompt, want[i].tokens);
      Served served({.num_blocks = lanes == 3 ? 9u : 400u,
                     .max_num_seqs = 5,
                     .max_num_batched_tokens = 11,
                     .lanes = {lanes, false, LaneSplit::by_token},
                     .late = lanes == 3 ? std::optional(7u) : std::nullopt,
                     .speculation = {4, truth == 0.7},
                     .drafter = &prophet});
      EXPECT_EQ(answer_varied(served), want) << truth << ", " << lanes << " lanes";
      const SpeculationStats stats = served.worker->stats().speculation;
      EXPECT_GT(stats.drafted, 0u);
      EXPECT_EQ(truth == 0.0, stats.accepted == 0);
      EXPECT_EQ(truth == 1.0, stats.accepted == stats.drafted);
      uint64_t by_position = 0;
      for (const uint64_t count : stats.accepted_at) by_position += count;
      EXPECT_EQ(by_position, stats.accepted);
      accepted += stats.accepted;
      refused += stats.drafted - stats.accepted;
      preempted += served.worker->stats().preempted;
    }
  }
  EXPECT_GT(accepted, 100u);
  EXPECT_GT(refused, 100u);
  EXPECT_GT(preempted, 0u);
}

// The same with the drafter that a checkpoint brings, its keys in the pool and its rows among the others.
TEST(AttentionWorker, TheModelsOwnDraftsChangeNoBit) {
  Served alone({.fixture = "deepseek_v3_mtp"});
  const auto want = answer_varied(alone);
  uint64_t preempted = 0;
  for (const uint32_t tokens : {1u, 3u}) {
    for (const uint32_t lanes : {1u, 3u}) {
      for (const bool automatic : {false, true}) {
        Served served({.num_blocks = lanes == 3 ? 9u : 400u,
                       .max_num_seqs = 5,
                       .max_num_batched_tokens = 11,
                       .lanes = {lanes, false, LaneSplit::by_token},
                       .late = lanes == 3 ? std::optional(tokens) : std::nullopt,
                       .speculation = {tokens, automatic},
                       .fixture = "deepseek_v3_mtp",
                       .captures = automatic});
        EXPECT_EQ(answer_varied(served), want) << tokens << " drafts, " << lanes << " lanes";
        const EngineStats stats = served.worker->stats();
        const SpeculationStats& drafts = stats.speculation;
        EXPECT_GT(drafts.drafted, 0u);
        EXPECT_GT(drafts.accepted, drafts.drafted / 5) << "the drafter sees other rows than it should";
        EXPECT_LT(drafts.accepted, drafts.drafted);
        EXPECT_GT(drafts.rounds, 0u);
        EXPECT_EQ(stats.execution.graph_replays > 0, automatic);
        preempted += stats.preempted;
      }
    }
  }
  EXPECT_GT(preempted, 0u);
}

// Chunks, batches, lanes and rejected drafts give the drafter the rows that it would see of the whole text.
TEST(AttentionWorker, DraftsAreThoseOfTheWholeText) {
  Served alone({.fixture = "deepseek_v3_mtp"});
  const auto want = answer_all(alone, false);
  Served held({.speculation = {1, false}, .fixture = "deepseek_v3_mtp"});
  OfflineOptions options;
  options.capacity = options.tokens_per_sequence = 128;
  const auto offline = OfflineRunner::create(*held.model, held.runner, options);
  ASSERT_TRUE(offline) << offline.error().message;
  uint64_t drafted = 0, accepted = 0;
  for (uint32_t i = 0; i < want.size(); ++i) {
    std::vector<int32_t> text = held.request(i, 1 + i * 7, 20).prompt;
    const size_t prompt = text.size();
    text.insert(text.end(), want[i].tokens.begin(), want[i].tokens.end());
    std::vector<OfflineRow> rows, behind;
    for (uint32_t position = 0; position + 1 < text.size(); ++position) {
      rows.push_back({0, position, text[position]});
      behind.push_back({0, position, text[position + 1]});
    }
    ASSERT_TRUE((*offline)->run(rows));
    const std::vector<float> logits = [&] {
      const auto span = (*offline)->run_drafts(behind).value();
      return std::vector<float>(span.begin(), span.end());
    }();
    const size_t vocab = held.config.vocab_size;
    // Up to the last token that may still be drafted: the step behind it gives one token more.
    for (size_t said = prompt + 1; said + 1 < text.size();) {
      const auto row = logits.begin() + static_cast<std::ptrdiff_t>((said - 2) * vocab);
      const auto best = std::max_element(row, row + static_cast<std::ptrdiff_t>(vocab)) - row;
      ++drafted;
      const bool right = best == text[said];
      accepted += right ? 1 : 0;
      said += right ? 2 : 1;
    }
  }
  EXPECT_GT(accepted, 50u);
  for (const uint32_t lanes : {1u, 3u}) {
    Served served({.max_num_seqs = 7,
                   .max_num_batched_tokens = 17,
                   .lanes = {lanes, false, LaneSplit::by_token},
                   .late = lanes == 3 ? std::optional(1u) : std::nullopt,
                   .speculation = {1, false},
                   .fixture = "deepseek_v3_mtp"});
    EXPECT_EQ(answer_all(served, false), want);
    const SpeculationStats stats = served.worker->stats().speculation;
    EXPECT_EQ(stats.drafted, drafted) << lanes;
    EXPECT_EQ(stats.accepted, accepted) << lanes;
  }
}

TEST(AttentionWorker, ALostPeerAmongDraftsEndsEveryRequestByName) {
  Served served({.max_context = 6000, .speculation = {2, false}, .fixture = "deepseek_v3_mtp"});
  for (int round = 0; round < 5; ++round) {
    std::vector<std::shared_ptr<Recorder>> open;
    for (uint32_t i = 0; i < 6; ++i) open.push_back(served.submit(served.request(i, 10, 1000)));
    open[0]->wait_for_tokens(static_cast<size_t>(2 + round));
    served.port->lost = true;
    for (const auto& recorder : open) {
      const Finish finish = recorder->wait();
      ASSERT_EQ(finish.reason, FinishReason::error);
      EXPECT_EQ(finish.error.message, LosablePort::kReason);
    }
    EXPECT_EQ(served.worker->stats().kv_blocks_used, 0u);
    served.port->lost = false;
    const Instant end = now() + std::chrono::seconds(30);
    while (!served.worker->health().has_value() && now() < end)
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  EXPECT_EQ(served.submit(served.request(9, 10, 8))->wait().completion_tokens, 8u);
}

TEST(AttentionWorker, AnAnswerEndsInsideItsDrafts) {
  Served alone({.max_context = 30});
  const auto reference = alone.submit(alone.request(5, 10, 16));
  reference->wait();
  const std::vector<int32_t> tokens = reference->tokens();
  const auto with_drafts = [&](GenerationRequest request, uint32_t max_context = 200) {
    Prophet prophet(1.0, 1);
    prophet.learn(request.prompt, tokens);
    Served served({.max_context = max_context, .speculation = {8, false}, .drafter = &prophet});
    const auto recorder = served.submit(request);
    const Finish finish = recorder->wait();
    EXPECT_EQ(finish.completion_tokens, recorder->tokens().size());
    EXPECT_EQ(served.worker->stats().kv_blocks_used, 0u);
    return std::pair(recorder->tokens(), finish.reason);
  };
  for (uint32_t length = 1; length <= 16; ++length) {
    const std::vector<int32_t> want(tokens.begin(), tokens.begin() + length);
    EXPECT_EQ(with_drafts(alone.request(5, 10, length)), std::pair(want, FinishReason::length));
    EXPECT_EQ(with_drafts(alone.request(5, 10, 16), 10 + length), std::pair(want, FinishReason::length));
    GenerationRequest stopped = alone.request(5, 10, 16);
    stopped.sampling.stop_token_ids = {tokens[length - 1]};
    const auto end = std::find(tokens.begin(), tokens.end(), tokens[length - 1]) + 1;
    EXPECT_EQ(with_drafts(stopped), std::pair(std::vector(tokens.begin(), end), FinishReason::stop));
  }
}

TEST(AttentionWorker, CancelsAmongDraftsGiveEverythingBack) {
  Served alone;
  std::vector<GenerationRequest> asked;
  const auto want = answer_varied(alone, &asked);
  Prophet prophet(0.8, 3);
  for (size_t i = 0; i < want.size(); ++i) prophet.learn(asked[i].prompt, want[i].tokens);
  Served served({.num_blocks = 30, .late = 4, .speculation = {3, false}, .drafter = &prophet});
  std::vector<std::shared_ptr<Recorder>> recorders;
  for (uint32_t i = 0; i < 60; ++i) {
    RequestId id = 0;
    recorders.push_back(served.submit(varied_request(served, i % 12), &id));
    if (i % 3 != 0) recorders.back()->wait_for_tokens(i % 5);
    served.worker->cancel(id);
  }
  for (const auto& recorder : recorders) recorder->wait();
  EXPECT_EQ(served.worker->stats().kv_blocks_used, 0u);
  EXPECT_EQ(answer_varied(served), want);
}

TEST(AttentionWorker, RequestsThatCannotFitAreRefusedAndThoseThatFillThePoolEnd) {
  Served served({.num_blocks = 9, .max_context = 200});
  EXPECT_NE(served.refusal(served.request(1, 145, 4)).find("145 tokens do not fit the KV pool of 144"),
            std::string::npos);
  EXPECT_NE(served.refusal(served.request(1, 200, 4))
                .find("200 tokens leave no room for an answer in a context of 200"),
            std::string::npos);
  const auto fills = served.submit(served.request(1, 144, 50));
  const auto after = served.submit(served.request(2, 3, 4));
  Finish finish = fills->wait();
  EXPECT_EQ(finish.reason, FinishReason::length);
  EXPECT_EQ(finish.completion_tokens, 1u);
  finish = served.submit(served.request(3, 140, 50))->wait();
  EXPECT_EQ(finish.reason, FinishReason::length);
  EXPECT_EQ(finish.completion_tokens, 5u);  // 144 tokens in the cache, and one that needs none
  EXPECT_EQ(after->wait().completion_tokens, 4u);
}

TEST(AttentionWorker, TheContextLimitEndsAnAnswer) {
  Served served({.max_context = 30});
  const Finish finish = served.submit(served.request(1, 25, 100))->wait();
  EXPECT_EQ(finish.reason, FinishReason::length);
  EXPECT_EQ(finish.completion_tokens, 5u);
}

TEST(AttentionWorker, BadRequestsAreRefusedByName) {
  Served served;
  GenerationRequest request = served.request(1, 4, 4);
  request.prompt.clear();
  EXPECT_NE(served.refusal(request).find("no tokens"), std::string::npos);
  for (int32_t bad : {-1, static_cast<int32_t>(served.config.vocab_size), INT32_MAX}) {
    request.prompt = {1, bad};
    EXPECT_NE(served.refusal(request).find("token id " + std::to_string(bad)), std::string::npos);
  }
  request = served.request(1, 4, 4);
  request.sampling.logit_bias = {{static_cast<int32_t>(served.config.vocab_size), 1.0f}};
  EXPECT_NE(served.refusal(request).find("logit_bias"), std::string::npos);
}

TEST(AttentionWorker, StopTokensEndWhereTheyShould) {
  Served plain;
  const auto reference = plain.submit(plain.request(5, 10, 12));
  reference->wait();
  const std::vector<int32_t> tokens = reference->tokens();
  const int32_t stop = tokens[4];
  const auto first = static_cast<size_t>(std::find(tokens.begin(), tokens.end(), stop) - tokens.begin());

  GenerationRequest request = plain.request(5, 10, 12);
  request.sampling.stop_token_ids = {stop};
  auto recorder = plain.submit(request);
  EXPECT_EQ(recorder->wait().reason, FinishReason::stop);
  EXPECT_EQ(recorder->tokens(),
            std::vector<int32_t>(tokens.begin(), tokens.begin() + static_cast<long>(first) + 1));

  request.sampling.min_tokens = 12;
  recorder = plain.submit(request);
  EXPECT_EQ(recorder->wait().reason, FinishReason::length);
  const auto unstopped = recorder->tokens();
  EXPECT_EQ(std::count(unstopped.begin(), unstopped.end(), stop), 0);

  Served with_eos({.eos = {stop}});
  recorder = with_eos.submit(with_eos.request(5, 10, 12));
  EXPECT_EQ(recorder->wait().reason, FinishReason::stop);
  EXPECT_EQ(recorder->tokens().back(), stop);
  request = with_eos.request(5, 10, 12);
  request.sampling.ignore_eos = true;
  recorder = with_eos.submit(request);
  recorder->wait();
  EXPECT_EQ(recorder->tokens(), tokens);
}

TEST(AttentionWorker, CancelsInEveryStateGiveEverythingBack) {
  Served served({.num_blocks = 20, .max_num_seqs = 4, .max_num_batched_tokens = 16});
  std::mt19937 random(2);
  std::vector<std::pair<RequestId, std::shared_ptr<Recorder>>> open;
  for (int i = 0; i < 120; ++i) {
    RequestId id = 0;
    auto recorder = served.submit(
        served.request(static_cast<uint32_t>(i), 1 + static_cast<uint32_t>(random() % 100), 30), &id);
    open.emplace_back(id, recorder);
    if (random() % 2 == 0) recorder->wait_for_tokens(random() % 3);  // queued, in prefill, or decoding
    const auto& [victim, ignored] = open[random() % open.size()];
    served.worker->cancel(victim);  // may have ended long ago: no matter
  }
  for (const auto& [id, recorder] : open) served.worker->cancel(id);
  uint64_t cancelled = 0;
  for (const auto& [id, recorder] : open)
    cancelled += recorder->wait().reason == FinishReason::cancelled ? 1 : 0;
  const EngineStats stats = served.worker->stats();
  EXPECT_GT(cancelled, 0u);
  EXPECT_EQ(stats.cancelled, cancelled);
  EXPECT_EQ(stats.cancelled + stats.finished, 120u);
  EXPECT_EQ(stats.kv_blocks_used, 0u);
  EXPECT_EQ(stats.running + stats.waiting, 0u);
  served.worker->cancel(999999);  // unknown
  EXPECT_EQ(served.submit(served.request(1, 5, 3))->wait().completion_tokens, 3u);
}

TEST(AttentionWorker, ALostPeerEndsEveryRequestByNameAndComesBack) {
  Served served({.max_num_seqs = 2, .max_context = 6000});
  const Answer want = [&] {
    auto recorder = served.submit(served.request(9, 10, 8));
    const Finish finish = recorder->wait();
    return Answer{recorder->tokens(), finish.logits_hash};
  }();
  std::vector<std::shared_ptr<Recorder>> open;
  for (uint32_t i = 0; i < 6; ++i)
    open.push_back(served.submit(served.request(i, 10, 5000)));  // running and waiting
  open[0]->wait_for_tokens(2);
  served.port->lost = true;
  for (const auto& recorder : open) {
    const Finish finish = recorder->wait();
    ASSERT_EQ(finish.reason, FinishReason::error);
    EXPECT_EQ(finish.error.code, ErrorCode::unavailable);
    EXPECT_EQ(finish.error.message, LosablePort::kReason);
  }
  const Instant end = now() + std::chrono::seconds(30);
  while (served.worker->health().has_value() && now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  ASSERT_FALSE(served.worker->health().has_value());
  EXPECT_EQ(served.refusal(served.request(1, 5, 3)), LosablePort::kReason);
  EXPECT_EQ(served.worker->stats().kv_blocks_used, 0u);

  served.port->lost = false;
  while (!served.worker->health().has_value() && now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  auto recorder = served.submit(served.request(9, 10, 8));
  const Finish finish = recorder->wait();
  EXPECT_EQ((Answer{recorder->tokens(), finish.logits_hash}), want);
}

TEST(AttentionWorker, AFullQueueIsRefusedAndStoppingEndsWhatIsOpen) {
  std::vector<std::shared_ptr<Recorder>> open;
  {
    Served served({.max_num_seqs = 1, .max_queue = 5});
    Result<RequestId> result = RequestId{0};
    for (int i = 0; i < 40 && result; ++i) {
      open.push_back(std::make_shared<Recorder>());
      result = served.worker->submit(served.request(1, 30, 150), open.back());
    }
    ASSERT_FALSE(result.has_value());
    EXPECT_EQ(result.error().code, ErrorCode::resource_exhausted);
    open.pop_back();
  }
  for (const auto& recorder : open) {
    const FinishReason reason = recorder->wait().reason;
    EXPECT_TRUE(reason == FinishReason::cancelled || reason == FinishReason::length);
  }
}

}  // namespace
}  // namespace tandem
