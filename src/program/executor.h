// Executor: runs the steps of lanes over one FfnPort. A lane is an independent stream of steps: buffers of
// its own, a program counter, and the batch in work. When a lane must wait for the experts the executor
// returns, and the caller advances another lane (oldest first) or sleeps on the port's descriptor and then
// calls `poll`. One thread calls everything here; nothing blocks and nothing is allocated between `start` and
// the end of a step.
//
// A lane holds one or more programs of the same model that differ in their capacity alone, and each step says
// which of them it runs. The rows of one step may be split over lanes: then a lane names the one with the
// rows before its own, and an operation that reads cached keys (OperationKind::attend) waits until that one
// has written its keys of the layer.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/buffer.h"
#include "base/trace_ring.h"
#include "program/device.h"
#include "program/program.h"

namespace tandem {

class Executor;

class Lane {
 public:
  ~Lane();  // cancels a step in work
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  LaneId id() const { return id_; }
  // Of the step in work, or of the last one.
  const Program& program() const { return *programs_[chosen_]; }
  const Program& program(size_t index) const { return *programs_[index]; }
  bool active() const { return active_; }
  // Logits of the last step that was done, [logit_rows, vocab_size]; valid until the next start.
  std::span<const float> logits() const;
  std::span<const float> logits(uint32_t index) const;  // of batch.logit_rows[index]: [vocab_size]
  // Program::hidden of the last step that was done: row `index` of it [hidden]. Valid until the next start.
  const float* hidden(uint32_t index) const;
  // Of the step in work, or of the last one.
  const StepStats& stats() const { return stats_; }
  RowClass row_class() const { return batch_.row_class; }
  // All planned buffers, for tests: what spare rows hold must not matter.
  std::span<std::byte> buffers() { return {memory_.data(), memory_.size()}; }

 private:
  friend class Executor;
  Lane(Executor& executor, std::vector<std::shared_ptr<const Program>> programs, LaneId id,
       OwnedBuffer memory)
      : executor_(executor), programs_(std::move(programs)), id_(id), memory_(std::move(memory)) {}

  Executor& executor_;
  std::vector<std::shared_ptr<const Program>> programs_;
  size_t chosen_ = 0;  // of programs_
  LaneId id_;
  OwnedBuffer memory_;
  StepBatch batch_;
  size_t next_ = 0;  // program counter
  bool active_ = false;
  bool done_ = false;            // the last step ended well
  const Lane* after_ = nullptr;  // has the rows before this lane's, in a split step
  Instant ready_since_;          // when it could go on: the step began, or a reply arrived
  uint64_t tried_ = 0;           // the sweep of next_ready that returned it last
  uint32_t logit_rows_ = 0;
  FfnExchange exchange_;
  StepStats stats_;
  Instant started_;
  std::optional<Instant> waiting_since_;

  // Where a trace may be recorded.
  struct TracedOperation {
    uint32_t name = 0;
    uint16_t layer = kNoTraceLayer;
  };
  std::vector<TracedOperation> traced_;  // [operations], the same of all programs; empty: without a ring
  Instant activated_;                    // the step, or its head again
  uint16_t submitted_layer_ = kNoTraceLayer;
};

// yielded: it could go on at once.
enum class AdvanceState : uint8_t { done, waiting, yielded, failed };

// Which of the lanes that can go on is next: the one that could for longest, or that of the first kind that
// has one. Decode and draft rows are of one kind.
enum class LaneOrder : uint8_t { oldest, decode_first, prefill_first };

struct Advance {
  AdvanceState state = AdvanceState::done;
  Error error;              // of failed
  uint32_t operations = 0;  // that were run
};

class Executor {
 public:
  // All outlive the executor, which outlives its lanes. `trace`: what lanes do is recorded there, once it is
  // on; null: nothing is.
  Executor(KernelRunner& kernels, FfnPort& port, TraceRing* trace = nullptr)
      : device_(kernels), port_(port), trace_(trace) {}
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  Device& device() { return device_; }
  FfnPort& port() { return port_; }

  // Lane ids are the caller's; unique among the lanes of one port. invalid_argument: the program was built
  // for another side of the experts than the port is. resource_exhausted: no memory for the buffers.
  Result<std::unique_ptr<Lane>> create_lane(std::shared_ptr<const Program> program, LaneId id);
  // Its buffers have room for the largest program. internal: programs that differ in their operations.
  Result<std::unique_ptr<Lane>> create_lane(std::vector<std::shared_ptr<const Program>> programs, LaneId id);

  // Begins a step with the lane's program number `program`; computes nothing yet. `after`: a lane that runs
  // the rows before these in the same split step, already started; it is not started again before this step
  // has ended. invalid_argument: no rows, more rows or logits than the capacity, a row or a token id out of
  // range, no such program, or a lane whose step has not ended.
  Status start(Lane& lane, const StepBatch& batch, size_t program = 0, const Lane* after = nullptr);

  // Begins the head of the lane's last step, which was done, again: `advance` then goes on with the
  // operations from Program::head_begin on, and `logits` are those of `logit_rows` instead. So a step's
  // logits need no more memory than the program's capacity has, however many of its rows they are wanted of.
  // What the step's rows and `logit_rows` point to is unchanged. invalid_argument: the last step is not done,
  // more rows than the capacity, or a row out of range.
  Status start_head(Lane& lane, std::span<const uint32_t> logit_rows);

  // Runs until the step has ended (done, failed) or must wait. A failed step leaves the lane free; cache
  // entries of its rows are then undefined, and so are those of lanes behind it in a split step, which fail
  // when they need them. Polls once by itself before it says waiting. From `yield_at` on it yields between
  // two operations.
  Advance advance(Lane& lane, Instant yield_at = Instant::max());

  // The next of the lanes that can go on; each at most once a sweep (sweeps are numbered by the caller,
  // ascending from 1), so that a lane without a credit is not tried for ever. Null: none is left.
  Lane* next_ready(uint64_t sweep, LaneOrder order = LaneOrder::oldest);

  // Fetches completions from the port and marks the lanes that may go on. Returns how many lanes it marked.
  size_t poll();

  // Ends the step in work, if any: after it returns nobody writes the lane's buffers.
  void cancel(Lane& lane);

 private:
  void end_step(Lane& lane, bool done);
  void activate(Lane& lane, size_t operation);
  // Whether the lanes before have written the keys that the operation `next_` reads; an error when one never
  // will.
  Status check_order(const Lane& lane) const;
  bool can_go_on(const Lane& lane) const;
  // The ring when it is on.
  TraceRing* tracing() const { return trace_ != nullptr && trace_->on() ? trace_ : nullptr; }
  void trace_exchange(const Lane& lane, const Completion& completion, Instant seen);

  CpuDevice device_;
  FfnPort& port_;
  TraceRing* const trace_;
  std::vector<Lane*> active_;
};

}  // namespace tandem
