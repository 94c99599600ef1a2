// AttentionWorker::Impl: what the files of AttentionWorker share. Not for anybody else.
//
// Everything but what `mutex` guards belongs to the worker's thread, once it runs.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "attention/attention_worker.h"
#include "attention/lane_choice.h"
#include "attention/mixed_steps.h"
#include "attention/prefill_share.h"
#include "attention/prefix_saver.h"
#include "attention/step_builder.h"

namespace tandem {

// What a kind of lane runs: [0] eager, then captured programs.
struct LanePrograms {
  std::vector<uint32_t> capacities;
  std::vector<uint32_t> words;  // what names the program to FFN; [0] is 0
  // The program for a step of `rows` rows; 0: eager.
  size_t choose(uint32_t rows) const;
};

// A sequence that a block is drafted for.
struct BlockPart {
  Sequence* sequence = nullptr;
  uint32_t most = 0;             // drafts that are wanted
  uint32_t first_logit_row = 0;  // of its block's in the drafter's lane
  double likely = 1;             // that all of Sequence::drafts are accepted
};

// One lane with the rows that it computes now, and the drafter's lane that follows it.
struct StepLane {
  std::unique_ptr<Lane> lane;
  StepBuilder builder{0};
  std::vector<StepPart> parts;
  bool running = false;
  size_t program = 0;  // of the stream's, that runs now

  // Rows of the step whose token behind is scored (SamplingParams::prompt_logprobs). The head runs for as
  // many of them at once as there is room for, and for those that are sampled last.
  struct ScoredRow {
    Sequence* sequence = nullptr;
    uint32_t position = 0;
  };
  std::vector<ScoredRow> scored_rows;
  std::vector<uint32_t> scored_in_step;    // [scored_rows]: which row of the step
  size_t next_scored = 0;                  // of scored_rows: the first that the head has not begun
  size_t head_rows = 0;                    // scored rows that the head computes now, behind next_scored
  std::span<const uint32_t> sampled_rows;  // of the step, of builder

  std::unique_ptr<Lane> draft_lane;  // null without draft programs
  StepBuilder draft_builder{0};
  std::vector<StepBuilder::DraftPart> draft_parts;
  std::vector<float> draft_hidden;  // [draft_parts, hidden]: what the next round reads
  size_t draft_program = 0;

  // With a drafter of blocks instead of draft_parts.
  std::vector<BlockPart> block_parts;
  std::unique_ptr<Lane> chain_lane;  // completes one row of each block at a time
  StepBuilder chain_builder{0};

  void forget_drafts() {
    draft_parts.clear();
    block_parts.clear();
  }
};

// The lanes that run one step together: a decode stream has one lane, the prefill stream one, or several that
// share the rows of a step by token. The step ends when all of them have. Then the drafter's lanes run a
// round over the rows that were kept, and one more for each further draft; or a block for each sequence, and
// then the chain a round for each draft.
struct StepStream {
  RowClass row_class = RowClass::decode;
  std::vector<StepLane> lanes;
  LanePrograms programs, draft_programs;
  uint32_t num_layers = 0;
  uint32_t max_sequences = 0;  // of a decode step
  uint32_t decode_parts = 0;   // of the prefill stream: its step's first parts, which are decode rows
  bool is_drafting = false;    // the drafter's lanes run
  bool is_chaining = false;    // those of the chain
  // Of the drafting in work, with a drafter of blocks.
  uint32_t block_sequences = 0;
  double block_seconds = 0;
  std::vector<Sequence*> drafted_for;  // in_step until the drafter is done
  bool busy() const {
    if (is_drafting) return true;
    for (const StepLane& lane : lanes) {
      if (!lane.parts.empty()) return true;
    }
    return false;
  }
};

struct AttentionWorker::Impl {
  struct Submission {
    RequestId id = 0;
    GenerationRequest request;
    std::shared_ptr<GenerationSink> sink;
    AnswerForm form;
    Instant arrived;
  };

  Impl(const AttentionWorkerOptions& worker_options, StatePools state_pools, KernelRunner& kernels,
       FfnPort& ffn_port)
      : options(worker_options),
        pools(std::move(state_pools)),
        port(&ffn_port),
        executor(kernels, ffn_port, worker_options.trace),
        cache(worker_options.prefix_caching ? PrefixCache::create(pools, cache_options(worker_options))
                                            : nullptr),
        scheduler(worker_options.scheduler, cache.get()),
        turns(worker_options.prefill_share),
        drafts(worker_options.speculation, draft_rows_of(worker_options)),
        grammars(worker_options.vocabulary) {}
  ~Impl();

  Status create_streams(const AttentionPrograms& programs);
  // Runs each captured program of each decode lane once. Before the thread begins.
  Status warm_up();
  Status run_profile_step(Lane& lane, const LanePrograms& programs, size_t program);
  void wake() const;
  // The prefix cache's file, where there is one. What is wrong with it is logged and nothing else.
  void load_prefixes_from_file();
  void save_prefixes_to_file();
  // Goes on with the file that is written now and then, a little at a time.
  void tend_prefix_file();

  // ---- worker thread: attention_worker.cc ----

  void loop();
  void take_inbox();
  uint64_t random_seed() { return (uint64_t{entropy()} << 32) | entropy(); }
  void check_peer();
  // Ends requests whose deadline has passed, wherever they wait; those in a step when it ends.
  void end_overdue();
  void finish_overdue(Sequence& sequence);
  // A sequence has rows in a step for the first time.
  void note_scheduled(Sequence& sequence);
  // Samples and delivers the next token. Below 0: the sequence has ended and is gone.
  int32_t sample(Sequence& sequence, std::span<const float> logits);
  // What must not be chosen as number `index` of the answer, which stands at `form`. Valid until the next
  // call.
  TokenBans bans_of(const SamplingParams& sampling, const AnswerForm& form, uint32_t index);
  // Ends every request. Steps in work are cancelled first: nobody writes into blocks that are given back.
  void end_all(const Error& error, FinishReason reason);
  void finish(Sequence& sequence, FinishReason reason, const Error& error);
  void publish_stats();
  void update_stats();  // the mutex is held
  void sleep();
  void trace_loop(TraceKind kind, Instant begin, Instant end);

  // ---- worker thread: attention_worker_steps.cc ----

  // Starts a step on every stream that is free and has something to do. False: none was.
  bool start_streams();
  bool plan(StepStream& stream);
  // At most `most` rows of prompts. False: there is nothing to do.
  bool plan_prompts(StepStream& stream, uint32_t most);
  void start(StepStream& stream);
  // Runs the lanes that can go on until each must wait, a decode step has ended, or a prompt has had its
  // turn. False: none could go on.
  bool run_lanes();
  void end_lane(Lane& lane);
  void finish_step(StepStream& stream);
  void fail_step(StepStream& stream, const Error& error);
  void drop(StepStream& stream);
  void count_execution(const StepStream& stream, const StepLane& lane, ExecutionStats& counts);
  void count_step(const StepStream& stream, const StepLane& lane);
  void count_times(const StepStats& step);
  void choose_decode_lanes();
  StepStream& stream_of(const Lane& lane);

  // ---- worker thread: attention_worker_mixed.cc ----

  // Where decode rows may take rows of prompts along, and both streams are free: starts their common step, or
  // a decode step that prompts do not disturb. False: it did neither.
  bool start_mixed();
  bool can_mix() const;
  // Whether prompts wait for the end of the decode step in work, to come along in the next one.
  bool waits_to_mix();

  // ---- worker thread: attention_worker_prompts.cc ----

  // Lays out which rows of the lane's step are scored; the batch then begins with the first of them.
  void begin_scores(StepLane& lane, StepBatch& batch);
  // A lane's step, or its head, is done: delivers what it has scored and begins the head again for the next
  // rows, or for those that are sampled. False: there is nothing left to compute.
  bool score(Lane& computed);
  void deliver_scores(const StepLane& lane);

  // ---- worker thread: attention_worker_drafts.cc ----

  // Samples the rows of a part and rolls back what was not accepted: `part.rows` are then those that were
  // kept. False: the sequence has ended and is gone.
  bool verify(StepPart& part, const Lane& lane, uint32_t first_logit_row);
  // Row `row` of a step with `drafted` drafts is sampled now.
  void count_draft(uint32_t row, uint32_t drafted);
  // Drafts that may follow the sequence's last token.
  uint32_t most_drafts(const Sequence& sequence) const;
  // Lays out what to draft behind a step. False: nothing; the stream is free.
  bool begin_drafts(StepStream& stream);
  // False: no lane has anything to do.
  bool start_draft_round(StepStream& stream);
  void finish_draft_round(StepStream& stream);
  void propose(Sequence& sequence, std::span<const float> logits);
  void count_round(const StepStream& stream, const StepStats& step);
  // The sequences are free for the next plan; those that were cancelled meanwhile end.
  void release_drafted(StepStream& stream);

  // ---- worker thread: attention_worker_blocks.cc ----

  bool drafts_blocks() const { return options.speculation.block.size > 0; }
  static DraftRows draft_rows_of(const AttentionWorkerOptions& given) {
    return given.drafter != nullptr           ? DraftRows::none
           : given.speculation.block.size > 0 ? DraftRows::block
                                              : DraftRows::kept;
  }
  // A drafter of rows has keys of its own, which hold the token behind their position.
  static PrefixCacheOptions cache_options(const AttentionWorkerOptions& given) {
    const bool rows = given.speculation.num_tokens > 0 && draft_rows_of(given) == DraftRows::kept;
    return {.lookahead = rows ? 1u : 0u};
  }
  // Takes the sequence in where the pools have room for its block. False: it goes on without drafts.
  bool begin_block(StepLane& lane, Sequence& sequence, uint32_t most);
  // False: no lane has anything to do.
  bool start_blocks(StepStream& stream);
  bool start_chain(StepStream& stream);
  void finish_block_round(StepStream& stream);

  AttentionWorkerOptions options;
  EngineLimits limits;
  StatePools pools;
  FfnPort* port = nullptr;
  Executor executor;
  std::unique_ptr<PrefixCache> cache;  // null: off
  std::unique_ptr<PrefixSaver> saver;  // null: no file
  Instant next_save{};
  uint64_t saved_units = 0;      // PrefixCache::num_stored when the last file was begun
  bool copies_prefixes = false;  // there is more to copy for the file at once
  Scheduler scheduler;
  std::vector<StepStream> streams;   // decode streams, then the prefill stream. Lane ids: in this order,
                                     // each drafter's behind its lane's
  std::vector<size_t> lane_streams;  // [lane id]: index in streams
  uint32_t num_decode_lanes = 1;     // in use: decode streams beyond start nothing
  bool decodes_alone = false;        // the decode step in work is measured: prompts wait for its end
  uint64_t sweep = 0;
  std::vector<StepPart> planned;              // of a prefill step that is split over lanes
  std::vector<std::vector<StepPart>> shares;  // reused
  std::vector<Sequence*> out_of_blocks;       // reused
  CostMeter attention_cost, experts_cost;
  double wire_seconds = 0;  // of a decode step beside what FFN says of itself; measured with one lane
  uint32_t steps_since_choice = 0;
  Duration loop_host{};  // of the loop around the lanes, since the last decode step was counted
  Sampler sampler;
  std::vector<int32_t> ends;                                   // reused: tokens that end an answer
  std::vector<uint64_t> allowed;                               // reused: by its form
  std::vector<TokenEvent> scores;                              // reused
  std::vector<std::vector<LogitCandidate>> scratch_of_worker;  // reused: [threads of the pool]
  PrefillShare turns;
  MixedSteps mixes;
  DraftPolicy drafts;
  std::vector<const Sequence*> gone;  // by the step that is being finished
  uint64_t num_generated = 0;         // tokens, of requests that go on too
  StepId next_step = 1;
  Instant first_deadline = Instant::max();  // of all requests here, or before

  // Shared with callers.
  GrammarCache grammars;
  mutable std::mutex mutex;
  std::vector<Submission> submissions;
  std::vector<RequestId> cancellations;
  EngineStats stats;
  Status health_now;
  RequestId next_id = 1;
  std::random_device entropy;

  int wake_fd = -1;
  std::atomic<bool> stop{false};
  std::thread thread;
};

inline bool peer_is_lost(const Error& error) {
  return error.code == ErrorCode::unavailable || error.code == ErrorCode::deadline_exceeded;
}

}  // namespace tandem
