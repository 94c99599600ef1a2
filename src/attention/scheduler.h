// Scheduler: which sequences compute which rows next. Continuous batching: a decode plan takes every sequence
// that needs one more row, a prefill plan takes chunks of prompts under a budget of rows. Pure bookkeeping:
// no clock, no compute, no callbacks. One thread.
//
// Order is by arrival. When the pool is empty the youngest running sequence gives its blocks back and is
// computed again later, so the oldest always goes on: no starvation.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "attention/sequence.h"

namespace tandem {

struct SchedulerLimits {
  uint32_t max_num_seqs = 64;             // running at once
  uint32_t max_num_batched_tokens = 512;  // rows of one prefill step
};

// `rows` consecutive tokens of a sequence, from state.length() on. Its blocks are reserved.
struct StepPart {
  Sequence* sequence = nullptr;
  uint32_t rows = 0;
  // Whether the rows end at the sequence's last token, so that the next one can be sampled.
  bool samples() const { return rows == sequence->pending(); }
};

class Scheduler {
 public:
  Scheduler(const SchedulerLimits& limits, BlockPool& pool) : limits_(limits), pool_(&pool) {}

  void add(std::unique_ptr<Sequence> sequence) { waiting_.push_back(std::move(sequence)); }

  // Rows for a decode step and for a prefill step; empty when there is nothing to do. The sequences are
  // marked in_step until `finish_part`. Sequences that cannot grow although they are alone are appended to
  // `out_of_blocks`.
  std::vector<StepPart> plan_decode(std::vector<Sequence*>& out_of_blocks);
  std::vector<StepPart> plan_prefill();

  // The part's rows are in the cache.
  void finish_part(const StepPart& part);
  // Its step failed or was cancelled: nothing was written.
  void drop_part(const StepPart& part) { part.sequence->in_step = false; }

  // Takes a sequence out, wherever it is, with its blocks. It must not be in a step.
  std::unique_ptr<Sequence> remove(Sequence& sequence);
  Sequence* find(RequestId id) const;
  void for_each(const std::function<void(Sequence&)>& visit) const;

  size_t num_waiting() const { return waiting_.size(); }
  size_t num_running() const { return running_.size(); }
  uint64_t num_preempted() const { return num_preempted_; }

 private:
  bool preempt_younger_than(const Sequence& sequence);

  SchedulerLimits limits_;
  BlockPool* pool_;
  std::deque<std::unique_ptr<Sequence>> waiting_;   // by id
  std::vector<std::unique_ptr<Sequence>> running_;  // by id
  uint64_t num_preempted_ = 0;
};

}  // namespace tandem
