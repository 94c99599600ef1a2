// Engine: what a server sees of inference: requests in, streams of tokens out. Behind it stands an
// AttentionWorker in this process, or later workers elsewhere. Any thread may call; no call waits for
// compute.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "grammar/grammar_spec.h"

namespace tandem {

struct SamplingParams {
  float temperature = 1.0f;      // 0: greedy
  int32_t top_k = 0;             // 0 or -1: off
  float top_p = 1.0f;            // in [0, 1]; 0: the best token
  float min_p = 0.0f;            // in [0, 1]
  std::optional<uint64_t> seed;  // absent: drawn by the engine
  uint32_t stream = 0;  // which of a request's n answers: each has its own random stream from one seed
  float frequency_penalty = 0.0f, presence_penalty = 0.0f, repetition_penalty = 1.0f;
  std::vector<std::pair<int32_t, float>> logit_bias;
  uint32_t max_tokens = 16;  // 0: the prompt is computed and the request ends (length)
  uint32_t min_tokens = 0;   // end-of-sequence and stop tokens are not sampled before
  std::vector<int32_t> stop_token_ids;
  bool ignore_eos = false;
  int32_t top_logprobs = -1;     // -1: none; n: the chosen token's and the n best
  int32_t prompt_logprobs = -1;  // the same of each token of the prompt but the first, which is then computed
                                 // anew whatever the prefix cache has
  GrammarSpec grammar;           // that the answer must match; it ends where the grammar does

  // Whether sampling looks at the tokens before.
  bool has_penalties() const {
    return frequency_penalty != 0.0f || presence_penalty != 0.0f || repetition_penalty != 1.0f;
  }
};

struct GenerationRequest {
  std::string id;               // for logs
  std::vector<int32_t> prompt;  // at least one token
  SamplingParams sampling;
  // Ends the request (error: deadline_exceeded) wherever it is then.
  Instant deadline = Instant::max();
  // By when it has rows in a step, or it ends (error: resource_exhausted). A deadline that passes before
  // counts as this one.
  Instant queue_deadline = Instant::max();
  bool hash_logits = false;          // Finish::logits_hash wanted
  int32_t priority = 0;              // lower ones go first, as in vLLM; equal ones by arrival
  bool bypass_prefix_cache = false;  // the whole prompt is computed (and stored for others)
  std::string cache_salt;            // beginnings of prompts are shared among requests of the same salt only
};

struct TokenLogprob {
  int32_t token = 0;
  float logprob = 0;  // natural logarithm, finite: -inf is reported as -9999 so that JSON stays valid
};

struct TokenEvent {
  int32_t token = 0;
  float logprob = 0;                       // of the unmodified distribution (temperature 1), when asked for
  std::vector<TokenLogprob> top_logprobs;  // best first
  uint32_t index = 0;                      // 0 for the first generated token; of a prompt the position
  uint32_t rank = 0;  // of the token, 1 for the best, when logprobs were asked for; equal ones share a rank
};

enum class FinishReason : uint8_t {
  stop,       // end of sequence or a stop token (which is delivered as the last TokenEvent before)
  length,     // max_tokens or the context limit
  cancelled,  // by cancel()
  error,      // `error` says why
};

struct Finish {
  FinishReason reason = FinishReason::stop;
  Error error;
  uint32_t prompt_tokens = 0, cached_tokens = 0, completion_tokens = 0;
  uint64_t logits_hash =
      0;  // over the float32 logits of every sampled position, in order: equal hashes, equal bits
};

// Receives one request's events on the engine's thread: hand them on and return. Exactly one on_finish, the
// last call.
class GenerationSink {
 public:
  virtual ~GenerationSink() = default;
  virtual void on_token(const TokenEvent& event) = 0;
  virtual void on_finish(const Finish& finish) = 0;
  // Where SamplingParams::prompt_logprobs asks for them: each token of the prompt from position 1 on, once,
  // before the first on_token. `index` is the position; positions come in any order.
  virtual void on_prompt_token(const TokenEvent& /*event*/) {}
};

using RequestId = uint64_t;

// How steps ran. Host time is what is neither computing nor waiting: planning of operations, submits, frames,
// replies; of decode steps, so that both kinds can be compared.
struct ExecutionStats {
  uint64_t eager_steps = 0;  // prefill, and decode in eager mode or as a miss
  // Graph mode. Padded: fewer rows than the program's capacity. A miss had more rows than any program.
  uint64_t graph_replays = 0, graph_padded_replays = 0, graph_misses = 0;
  uint64_t graph_warmups = 0;                    // profile steps at the start, one a program and lane
  uint64_t eager_layers = 0, replay_layers = 0;  // of decode steps: what the host time is spread over
  double eager_host_seconds = 0, replay_host_seconds = 0;

  void add(const ExecutionStats& other);
  bool operator==(const ExecutionStats&) const = default;
};

// Drafts: tokens proposed by a drafter and verified by the model. Totals; rounds and seconds are those of the
// drafter's own rows.
struct SpeculationStats {
  static constexpr size_t kPositions = 8;  // kMaxDraftTokens
  uint32_t tokens = 0;                     // most drafts of a sequence in a step now; 0: off
  uint64_t drafted = 0, accepted = 0;
  std::array<uint64_t, kPositions> accepted_at{};  // by position in a step, from the first draft on
  uint64_t rounds = 0;
  double seconds = 0;

  void add(const SpeculationStats& other);
  bool operator==(const SpeculationStats&) const = default;
};

// The prefix cache. Totals; tokens are those of requests as they were taken in, and again after a preemption.
struct PrefixStats {
  uint64_t queried_tokens = 0, hit_tokens = 0;
  uint32_t kept_blocks = 0;  // of the KV pool, in use or not: their contents can be shared

  void add(const PrefixStats& other);
  bool operator==(const PrefixStats&) const = default;
};

// How long requests waited from their arrival at their rank to their first rows in a step: a histogram, once
// for each request that got so far.
struct QueueTimes {
  // Seconds; from a step that has room at once to the longest that a client waits.
  static constexpr std::array<double, 16> kBounds{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25,
                                                  0.5,   1,      2.5,   5,    10,    30,   60,  120};
  std::array<uint64_t, kBounds.size() + 1> counts{};  // not cumulative; the last one is beyond all bounds
  double seconds = 0;                                 // of all of them

  void observe(double waited);
  void add(const QueueTimes& other);
  bool operator==(const QueueTimes&) const = default;
};

// Steps of lanes by kind, and the rows that they computed: a batch is rows / steps.
struct BatchStats {
  uint64_t decode_steps = 0, decode_rows = 0, prefill_steps = 0, prefill_rows = 0;

  void add(const BatchStats& other);
  bool operator==(const BatchStats&) const = default;
};

struct EngineStats {
  uint32_t waiting = 0, running = 0;
  uint32_t kv_blocks_total = 0, kv_blocks_used = 0;
  uint64_t prompt_tokens = 0, generated_tokens = 0, steps = 0, finished = 0, cancelled = 0, failed = 0,
           preempted = 0;
  uint64_t mixed_steps = 0;   // of steps: those of decode rows and prompts' rows together
  uint64_t overdue = 0;       // of the failed, those whose deadline had passed
  uint32_t decode_lanes = 1;  // in use now
  ExecutionStats execution;
  SpeculationStats speculation;
  PrefixStats prefix;
  QueueTimes queue;
  BatchStats batch;
  uint64_t ffn_submits = 0;
  uint64_t router_calls = 0;  // of the gate on this rank; 0 where it is elsewhere
  double router_seconds = 0;
  double ffn_wait_seconds = 0, step_seconds = 0;  // totals; ffn_wait: attention had nothing to do but wait
  // Totals of exchanges with FFN ranks: from submit to completion here, and from arrival to reply there, as
  // they say. The difference was on the wire (with several lanes also in this rank, waiting to be looked at).
  double ffn_round_trip_seconds = 0, ffn_residence_seconds = 0;
  // Of the residence, as the FFN ranks say: waiting, computing, waiting for other FFN ranks; of several
  // ranks each the largest. Where experts are in this process, their computing.
  double ffn_queue_seconds = 0, ffn_compute_seconds = 0, ffn_exchange_seconds = 0;
  double lane_busy_seconds = 0;  // in which lanes ran operations here

  // Of another rank: sums, of what says how a rank is set the largest.
  void add(const EngineStats& other);
  // What only grows while a process lives; the rest is as of a rank that has nothing to do.
  EngineStats totals() const;
};

inline void ExecutionStats::add(const ExecutionStats& other) {
  eager_steps += other.eager_steps;
  graph_replays += other.graph_replays;
  graph_padded_replays += other.graph_padded_replays;
  graph_misses += other.graph_misses;
  graph_warmups += other.graph_warmups;
  eager_layers += other.eager_layers;
  replay_layers += other.replay_layers;
  eager_host_seconds += other.eager_host_seconds;
  replay_host_seconds += other.replay_host_seconds;
}

inline void SpeculationStats::add(const SpeculationStats& other) {
  tokens = std::max(tokens, other.tokens);
  drafted += other.drafted;
  accepted += other.accepted;
  for (size_t i = 0; i < kPositions; ++i) accepted_at[i] += other.accepted_at[i];
  rounds += other.rounds;
  seconds += other.seconds;
}

inline void PrefixStats::add(const PrefixStats& other) {
  queried_tokens += other.queried_tokens;
  hit_tokens += other.hit_tokens;
  kept_blocks += other.kept_blocks;
}

inline void QueueTimes::observe(double waited) {
  const auto bucket = std::lower_bound(kBounds.begin(), kBounds.end(), waited) - kBounds.begin();
  ++counts[static_cast<size_t>(bucket)];
  seconds += waited;
}

inline void QueueTimes::add(const QueueTimes& other) {
  for (size_t i = 0; i < counts.size(); ++i) counts[i] += other.counts[i];
  seconds += other.seconds;
}

inline void BatchStats::add(const BatchStats& other) {
  decode_steps += other.decode_steps;
  decode_rows += other.decode_rows;
  prefill_steps += other.prefill_steps;
  prefill_rows += other.prefill_rows;
}

inline void EngineStats::add(const EngineStats& other) {
  waiting += other.waiting;
  running += other.running;
  kv_blocks_total += other.kv_blocks_total;
  kv_blocks_used += other.kv_blocks_used;
  prompt_tokens += other.prompt_tokens;
  generated_tokens += other.generated_tokens;
  steps += other.steps;
  finished += other.finished;
  cancelled += other.cancelled;
  failed += other.failed;
  preempted += other.preempted;
  mixed_steps += other.mixed_steps;
  overdue += other.overdue;
  decode_lanes = std::max(decode_lanes, other.decode_lanes);
  execution.add(other.execution);
  speculation.add(other.speculation);
  prefix.add(other.prefix);
  queue.add(other.queue);
  batch.add(other.batch);
  ffn_submits += other.ffn_submits;
  router_calls += other.router_calls;
  router_seconds += other.router_seconds;
  ffn_wait_seconds += other.ffn_wait_seconds;
  step_seconds += other.step_seconds;
  ffn_round_trip_seconds += other.ffn_round_trip_seconds;
  ffn_residence_seconds += other.ffn_residence_seconds;
  ffn_queue_seconds += other.ffn_queue_seconds;
  ffn_compute_seconds += other.ffn_compute_seconds;
  ffn_exchange_seconds += other.ffn_exchange_seconds;
  lane_busy_seconds += other.lane_busy_seconds;
}

inline EngineStats EngineStats::totals() const {
  EngineStats totals = *this;
  totals.waiting = totals.running = totals.kv_blocks_total = totals.kv_blocks_used = 0;
  totals.prefix.kept_blocks = 0;
  totals.speculation.tokens = 0;
  totals.decode_lanes = EngineStats{}.decode_lanes;
  return totals;
}

struct EngineLimits {
  uint32_t max_context_tokens = 0;  // prompt + generated
  uint32_t kv_pool_tokens = 0;      // what the whole pool can hold
  uint32_t vocab_size = 0;
  uint32_t max_num_seqs = 0;
  uint32_t max_queue = 0;
};

// One of the ranks behind an engine that stands in front of several.
struct EngineRank {
  uint32_t rank = 0;
  std::string name;  // "attention rank 1 at tcp://10.0.0.3:7100"
  Status health;     // unavailable: it gets no requests, and why
  EngineStats stats;
};

class Engine {
 public:
  virtual ~Engine() = default;
  virtual const EngineLimits& limits() const = 0;
  // Refused at once, by name: an empty or too long prompt (both numbers), ids outside the vocabulary, a full
  // queue (resource_exhausted), a lost peer (unavailable).
  [[nodiscard]] virtual Result<RequestId> submit(GenerationRequest request,
                                                 std::shared_ptr<GenerationSink> sink) = 0;
  // Takes effect within one step, in every state; on_finish(cancelled) follows unless the request has ended.
  virtual void cancel(RequestId id) = 0;
  virtual EngineStats stats() const = 0;
  // A value: serving. unavailable: degraded, naming the peer that is lost.
  virtual Status health() const = 0;
  // The ranks behind a front, in order; none: this engine is one itself. health() of a front is a value while
  // at least one rank serves.
  virtual std::vector<EngineRank> ranks() const { return {}; }
};

}  // namespace tandem
