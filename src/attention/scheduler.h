// Scheduler: which sequences compute which rows next. Continuous batching: a decode plan takes every sequence
// that needs one more row, a prefill plan takes chunks of prompts under a budget of rows. Pure bookkeeping:
// no clock, no compute, no callbacks. One thread.
//
// Several decode lanes step independently: each plan takes at most its share of the sequences that decode,
// the oldest ones that no lane has, and keeps them until its step has ended.
//
// A prompt begins with what the prefix cache has of it. It is taken in when the state groups that keep
// everything have room for all of it and the others for its first chunk; later chunks reserve as they come.
//
// Order is by priority, and by arrival among equals. When a pool is empty the last running sequence of the
// order gives its blocks, of every group, back and is computed again later (from what the cache still has of
// it), so the first always goes on: among equals there is no starvation. A more urgent prompt takes the place
// and the blocks of less urgent sequences; one that only came later never does.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "attention/sequence.h"

namespace tandem {

struct SchedulerLimits {
  uint32_t max_num_seqs = 64;             // running at once
  uint32_t max_num_batched_tokens = 512;  // rows of one prefill step
  // Benchmarks only: of a prompt the last token alone is computed, the blocks of those before are taken as
  // they are.
  bool synthetic_prompts = false;
};

// `rows` consecutive tokens of a sequence, from state.length() + offset on. Its blocks are reserved.
struct StepPart {
  Sequence* sequence = nullptr;
  uint32_t rows = 0;
  uint32_t offset = 0;   // rows of the same sequence in earlier parts of this step
  bool samples = false;  // the rows end at the sequence's last token: the next one can be sampled
  bool last = true;      // no later part of this step has rows of the same sequence
  uint32_t drafts =
      0;  // of the rows, behind the sequence's last token: Sequence::drafts. All rows are sampled
  // The worker's, for what follows the step: position of the first row, and its place in the lane's step.
  uint32_t begin = 0, first_row = 0;

  uint32_t logit_rows() const { return samples ? drafts + 1 : 0; }
};

// By token: the rows of a step in even shares for `shares` lanes, in order, whatever sequence they belong to;
// a part that lies across a border is cut. `out` [shares] (reused); the last ones are empty when there are
// fewer rows than shares.
void split_by_token(std::span<const StepPart> parts, std::span<std::vector<StepPart>> out);

class Scheduler {
 public:
  // `cache`: where sequences find what others have computed, and leave what they have; may be null.
  explicit Scheduler(const SchedulerLimits& limits, PrefixCache* cache = nullptr)
      : limits_(limits), cache_(cache) {}

  void add(std::unique_ptr<Sequence> sequence);

  // Before both plans: whoever lacked blocks or a place in the last prefill plan gets them from those behind
  // it while no lane has these. Otherwise decode steps that follow each other would keep them for ever.
  void make_way();
  // Sequences for a decode step, at most `max_sequences` with at most `max_drafts` of their drafts each, and
  // rows for a prefill step; `parts` (reused) stays empty when there is nothing to do. The sequences are
  // marked in_step until their step is finished. Drafts push nobody out: without blocks for them a sequence
  // goes on by one row. Sequences that cannot grow although they are alone are appended to `out_of_blocks`.
  void plan_decode(uint32_t max_sequences, uint32_t max_drafts, std::vector<StepPart>& parts,
                   std::vector<Sequence*>& out_of_blocks);
  // At most `max_rows` and max_num_batched_tokens rows.
  void plan_prefill(std::vector<StepPart>& parts, uint32_t max_rows = UINT32_MAX);

  // Sequences that need one more row, whether a lane has them now or not.
  uint32_t num_decoding() const;
  // Sequences whose prompt is computed, and those that wait and could be.
  uint32_t num_prefilling() const;
  // Sequences for the next decode plan where `lanes` lanes share them and `idle_lanes` of these have no step:
  // an even part of what is free, and never more than an even part of all.
  uint32_t decode_share(uint32_t lanes, uint32_t idle_lanes) const;

  // The part's rows are in the cache. Of several parts of a sequence in their order; the last one leaves it
  // free for the next plan.
  void finish_part(const StepPart& part);
  // Nobody goes over the step's rows again: what was computed is stored for others, and the sequence gives
  // back what it cannot reach.
  void settle(Sequence& sequence);
  // Its step failed or was cancelled: nothing was written.
  void drop_part(const StepPart& part) { part.sequence->in_step = false; }

  // Takes a sequence out, wherever it is; its blocks are stored and given back. It must not be in a step.
  std::unique_ptr<Sequence> remove(Sequence& sequence);
  Sequence* find(RequestId id) const;
  void for_each(const std::function<void(Sequence&)>& visit) const;

  size_t num_waiting() const { return waiting_.size(); }
  size_t num_running() const { return running_.size(); }
  uint64_t num_preempted() const { return num_preempted_; }
  uint64_t queried_tokens() const { return queried_tokens_; }  // PrefixStats
  uint64_t hit_tokens() const { return hit_tokens_; }

 private:
  // The last running sequence that may be, of those for which `before` holds. False: there is none.
  template <class Before>
  bool preempt_last(Before before);
  bool preempt_behind(const Sequence& sequence);
  bool preempt_less_urgent(const Sequence& sequence);
  // Takes the first waiting sequence in with a chunk of at most `budget` rows. 0: it has no room yet.
  uint32_t take_in(Sequence& sequence, uint32_t budget);
  // Blocks for all tokens but the last, as if they had been computed. False, with nothing taken: no room.
  bool pretend_computed(Sequence& sequence);
  void give_back(Sequence& sequence);
  // Blocks for the next `rows` rows of a prompt, or for as many as there are. Takes blocks of younger ones.
  uint32_t reserve_chunk(Sequence& sequence, uint32_t rows);

  bool fits(const Sequence& sequence) const;

  SchedulerLimits limits_;
  bool is_tight_ = false;  // somebody lacks something that another one behind it has
  PrefixCache* cache_;
  std::deque<std::unique_ptr<Sequence>> waiting_;   // in order
  std::vector<std::unique_ptr<Sequence>> running_;  // in order
  uint64_t num_preempted_ = 0, queried_tokens_ = 0, hit_tokens_ = 0;
};

}  // namespace tandem
