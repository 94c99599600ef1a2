// AttentionWorker: the attention role's engine. One thread of its own schedules, runs the lanes' steps over
// an FfnPort, samples and calls the sinks. Decode lanes and the prefill lane step independently, so that one
// computes while others wait for the experts; of those that can go on the one that could for longest goes
// first.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "attention/answer_form.h"
#include "attention/engine.h"
#include "attention/prefix_store.h"
#include "attention/scheduler.h"
#include "attention/speculation.h"
#include "attention/state_pools.h"
#include "moe/moe_block.h"
#include "program/executor.h"

namespace tandem {

// How the rows of prefill steps are spread over lanes; a decode row is a sequence either way.
enum class LaneSplit : uint8_t {
  by_request,  // one prefill lane
  by_token,    // as many prefill lanes as decode lanes: each step's rows in even shares, cut inside a prompt
};

struct LaneOptions {
  uint32_t micro_batches = 1;  // decode lanes, 1..8
  bool automatic = false;  // one, or as many up to micro_batches as measured steps speak for: lane_choice.h
  LaneSplit split = LaneSplit::by_request;
};

struct AttentionWorkerOptions {
  // Read before the worker begins, written when it ends.
  PrefixStoreOptions prefix_store = {};
  SchedulerLimits scheduler;
  LaneOptions lanes;
  SpeculationOptions speculation;           // num_tokens 0 without a drafter
  GrammarCache::LoadVocabulary vocabulary;  // null: answers in a given form are refused
  Drafter* drafter = nullptr;               // in place of draft programs; outlives the worker
  uint32_t max_context_tokens = 4096;       // prompt + generated
  uint32_t max_queue = 1024;                // requests that wait; one more is refused
  double prefill_share = 0.33;              // of prompts, at least, while sequences decode: prefill_share.h
  bool prefix_caching = true;               // prompts go on from what earlier sequences computed
  uint32_t vocab_size = 0;                  // ids that a prompt may hold
  std::vector<int32_t> eos_token_ids;
  Duration ffn_deadline =
      std::chrono::seconds(60);  // of one exchange: a backstop; a dead peer is noticed far sooner
  const MoeBlock* router =
      nullptr;  // whose routing stats() counts; outlives the worker. Null: the gate is elsewhere
  std::function<void()> on_start = {};  // called first on the engine's thread; may be empty
  // Where the engine's thread records what it and its lanes do, while somebody asks for it; outlives the
  // worker.
  TraceRing* trace = nullptr;
};

// Rows that one lane needs room for: its share of max_num_seqs, each with its drafts, and of
// max_num_batched_tokens; all of them where the number of lanes may change.
struct LaneRows {
  uint32_t decode = 0, prefill = 0;
  uint32_t prefill_logits = 0;  // of the rows of a prefill step, at once: one head at a time runs over these
  uint32_t sequences = 0;       // of a decode step
  // Of a round of drafting behind such a step; what is drafted for and at most asked of one sequence follows
  // from speculation.
  ProgramShape draft_decode, draft_prefill;
  uint32_t draft_sequences = 0;  // at most, behind either
};
LaneRows rows_of_lanes(const AttentionWorkerOptions& options);

// What the lanes run, built with the pools' caches, for at least the rows of rows_of_lanes.
struct AttentionPrograms {
  // A decode program of graph mode. `size` is what attention and FFN agreed on and what a request names; its
  // capacity may be smaller, where no step has as many rows.
  struct Captured {
    uint32_t size = 0;
    std::shared_ptr<const Program> program;
  };

  std::shared_ptr<const Program> decode, prefill;
  // Ascending by capacity. A decode step replays the smallest one that holds its rows; a step with more rows
  // than any runs `decode`. None: eager.
  std::vector<Captured> captured;

  // The drafter's: it follows each step with the rows that were kept, on lanes of its own, logits of one row
  // a sequence; or with a block (SpeculationOptions::block), logits of its first rows. Null: there is none.
  struct Drafts {
    std::shared_ptr<const Program> decode, prefill;
    std::vector<Captured> captured;
    std::shared_ptr<const Program> chain;  // of blocks (Model::build_draft_chain)
  } drafts;
};

class AttentionWorker final : public Engine {
 public:
  // `kernels` and `port` outlive the worker and are used by its thread alone from now on. Each captured
  // program is run once before this returns, with profile rows that belong to no sequence, so that both sides
  // have touched everything that a replay touches; a peer that is lost meanwhile is logged.
  static Result<std::unique_ptr<AttentionWorker>> create(const AttentionWorkerOptions& options,
                                                         StatePools pools, const AttentionPrograms& programs,
                                                         KernelRunner& kernels, FfnPort& port);
  // Ends every request (cancelled) and joins the thread.
  ~AttentionWorker() override;

  const EngineLimits& limits() const override;
  Result<RequestId> submit(GenerationRequest request, std::shared_ptr<GenerationSink> sink) override;
  void cancel(RequestId id) override;
  EngineStats stats() const override;
  Status health() const override;

 private:
  struct Impl;
  explicit AttentionWorker(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem
