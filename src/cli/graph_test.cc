// Graph mode over both roles in one process: a replayed step allocates nothing on any thread, counters say
// what ran, and no bit depends on how. One process, so that one counter sees all.
#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>
#include <thread>

#include "cli/deployment.h"
#include "cli/settings.h"
#include "program/allocation_counter.h"

namespace tandem {
namespace {

// Notes how often the process had allocated when each token came; allocates nothing itself.
class CountingSink final : public GenerationSink {
 public:
  explicit CountingSink(size_t tokens) { allocations_.reserve(tokens); }
  void on_token(const TokenEvent&) override { allocations_.push_back(test::allocations_so_far()); }
  void on_finish(const Finish& finish) override {
    const std::lock_guard lock(mutex_);
    finish_ = finish;
    done_ = true;
    changed_.notify_all();
  }
  Finish wait() {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, std::chrono::seconds(60), [&] { return done_; }));
    return finish_;
  }
  // Read after `wait`.
  const std::vector<size_t>& allocations() const { return allocations_; }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<size_t> allocations_;
  Finish finish_;
  bool done_ = false;
};

Settings settings_of(int64_t ffn_ranks, bool gate_on_attention) {
  Settings settings;
  settings.model = "models/arith";
  settings.engine.threads = 1;
  settings.engine.log_level = "warning";
  settings.up.ffn = ffn_ranks;
  settings.up.transport = "inproc";
  settings.afd.execution = "graph";
  settings.afd.micro_batches = "1";
  settings.afd.compute_gate_on_attention = gate_on_attention;
  settings.serving.max_num_seqs = 40;
  settings.serving.max_context_tokens = 256;
  return settings;
}

GenerationRequest request(int32_t first, uint32_t tokens) {
  GenerationRequest made;
  made.prompt = {first % 90, 5, 7, 9};  // of the smallest vocabulary
  made.sampling.temperature = 0;
  made.sampling.max_tokens = tokens;
  made.sampling.ignore_eos = true;
  made.hash_logits = true;
  return made;
}

struct Outcome {
  std::vector<uint64_t> hashes;
  ExecutionStats execution;
  SpeculationStats speculation;
  size_t allocations = 0;  // between two tokens in the middle of the longest request
};

// Three requests; the longest runs alone at its end.
Outcome run(const Settings& settings) {
  Outcome result;
  auto deployment = Deployment::start(settings);
  EXPECT_TRUE(deployment.has_value()) << deployment.error().message;
  if (!deployment) return result;
  Engine& engine = (*deployment)->engine();
  const uint32_t lengths[] = {20, 30, 150};
  std::vector<std::shared_ptr<CountingSink>> sinks;
  for (const uint32_t length : lengths) {
    sinks.push_back(std::make_shared<CountingSink>(length));
    EXPECT_TRUE(engine.submit(request(static_cast<int32_t>(length), length), sinks.back()).has_value());
  }
  result.hashes.reserve(sinks.size());  // this thread must not be counted
  for (const auto& sink : sinks) result.hashes.push_back(sink->wait().logits_hash);
  const std::vector<size_t>& counted = sinks[2]->allocations();
  if (counted.size() == 150) result.allocations = counted[145] - counted[60];
  EXPECT_EQ(counted.size(), 150u);
  result.execution = engine.stats().execution;
  result.speculation = engine.stats().speculation;
  return result;
}

// Both lanes of a step, the model's and the drafter's, on both roles.
TEST(GraphMode, DraftsAreReplayedAndAllocateNothing) {
  std::vector<uint64_t> without;
  for (const char* speculative : {"off", "on"}) {
    for (const int64_t ranks : {0, 1, 2}) {
      Settings settings = settings_of(ranks, true);
      settings.model = "tests/fixtures/deepseek_v3_mtp";
      settings.engine.deterministic = true;
      settings.engine.speculative = speculative;
      settings.engine.num_speculative_tokens = 2;
      settings.afd.connector = ranks == 2 ? "m2n" : "p2p";
      settings.afd.capture_sizes = {"4", "16"};
      const Outcome ran = run(settings);
      const std::string what = std::string(speculative) + ", " + std::to_string(ranks) + " FFN ranks";
      EXPECT_EQ(ran.allocations, 0u) << what;
      EXPECT_EQ(ran.execution.graph_misses, 0u) << what;
      EXPECT_EQ(ran.execution.graph_warmups, ran.speculation.drafted > 0 ? 4u : 2u) << what;
      EXPECT_EQ(ran.speculation.accepted > 0, std::string(speculative) == "on") << what;
      if (without.empty()) without = ran.hashes;
      EXPECT_EQ(ran.hashes, without) << what;
    }
  }
}

TEST(GraphMode, AReplayedStepAllocatesNothingOnEitherRole) {
  struct Case {
    int64_t ranks;
    bool gate;
    const char *connector, *exchange;
  };
  const Case cases[] = {
      {0, false, "p2p", "auto"},     {0, true, "p2p", "auto"},     {1, false, "p2p", "auto"},
      {1, true, "p2p", "auto"},      {2, true, "m2n", "auto"},     {2, false, "p2p", "alltoall"},
      {2, true, "p2p", "allgather"}, {3, true, "p2p", "alltoall"}, {3, false, "p2p", "allgather"}};
  std::vector<uint64_t> colocated;
  for (const Case& one : cases) {
    Settings settings = settings_of(one.ranks, one.gate);
    settings.engine.deterministic = true;
    settings.afd.connector = one.connector;
    settings.afd.exchange = one.exchange;
    const Outcome ran = run(settings);
    const std::string what = std::to_string(one.ranks) + " FFN ranks, gate on attention " +
                             std::to_string(one.gate) + ", " + one.connector + ", " + one.exchange;
    EXPECT_EQ(ran.allocations, 0u) << what;
    EXPECT_GT(ran.execution.graph_replays, 100u) << what;
    EXPECT_EQ(ran.execution.graph_misses, 0u) << what;
    if (colocated.empty()) colocated = ran.hashes;
    EXPECT_EQ(ran.hashes, colocated) << what;
  }
}

TEST(GraphMode, CountersSayWhatRanAndNoBitDependsOnIt) {
  Settings settings = settings_of(1, false);
  const Outcome graph = run(settings);
  // 8, 16, 32, and 64 cut to the 40 rows that a step can have.
  EXPECT_EQ(graph.execution.graph_warmups, 4u);
  EXPECT_EQ(graph.execution.graph_padded_replays, graph.execution.graph_replays);  // never 8 rows
  EXPECT_EQ(graph.execution.graph_misses, 0u);
  EXPECT_GT(graph.execution.eager_steps, 0u);  // prefill
  EXPECT_GT(graph.execution.replay_layers, 0u);
  EXPECT_GT(graph.execution.replay_host_seconds, 0.0);
  EXPECT_EQ(graph.execution.eager_layers, 0u);

  settings.afd.capture_sizes = {"1"};  // only the rows of a lone sequence
  const Outcome small = run(settings);
  EXPECT_EQ(small.execution.graph_warmups, 1u);
  EXPECT_GT(small.execution.graph_misses, 0u);
  EXPECT_GT(small.execution.graph_replays, 100u);
  EXPECT_EQ(small.execution.graph_padded_replays, 0u);
  EXPECT_GT(small.execution.eager_layers, 0u);  // the misses
  EXPECT_EQ(small.hashes, graph.hashes);

  settings.afd.execution = "eager";
  const Outcome eager = run(settings);
  EXPECT_EQ(eager.execution.graph_replays + eager.execution.graph_misses + eager.execution.graph_warmups, 0u);
  EXPECT_GT(eager.execution.eager_layers, 0u);
  EXPECT_EQ(eager.hashes, graph.hashes);
  settings.up.ffn = 0;
  EXPECT_EQ(run(settings).hashes, graph.hashes);  // colocated
  settings.afd.execution = "graph";
  settings.afd.micro_batches = "3";
  EXPECT_EQ(run(settings).hashes, graph.hashes);
}

}  // namespace
}  // namespace tandem
