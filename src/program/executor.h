// Executor: runs the steps of lanes over one FfnPort. A lane is an independent stream of steps: buffers of
// its own, a program counter, and the batch in work. When a lane must wait for the experts the executor
// returns, and the caller advances another lane (oldest first) or sleeps on the port's descriptor and then
// calls `poll`. One thread calls everything here; nothing blocks and nothing is allocated between `start` and
// the end of a step.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/buffer.h"
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
  const Program& program() const { return *program_; }
  bool active() const { return active_; }
  // Logits of the last step that was done, [logit_rows, vocab_size]; valid until the next start.
  std::span<const float> logits() const;
  std::span<const float> logits(uint32_t index) const;  // of batch.logit_rows[index]: [vocab_size]
  // Of the step in work, or of the last one.
  const StepStats& stats() const { return stats_; }
  // All planned buffers, for tests: what spare rows hold must not matter.
  std::span<std::byte> buffers() { return {memory_.data(), memory_.size()}; }

 private:
  friend class Executor;
  Lane(Executor& executor, std::shared_ptr<const Program> program, LaneId id, OwnedBuffer memory)
      : executor_(executor), program_(std::move(program)), id_(id), memory_(std::move(memory)) {}

  Executor& executor_;
  std::shared_ptr<const Program> program_;
  LaneId id_;
  OwnedBuffer memory_;
  StepBatch batch_;
  size_t next_ = 0;  // program counter
  bool active_ = false;
  uint32_t logit_rows_ = 0;
  FfnExchange exchange_;
  StepStats stats_;
  Instant started_;
  std::optional<Instant> waiting_since_;
};

enum class AdvanceState : uint8_t { done, waiting, failed };

struct Advance {
  AdvanceState state = AdvanceState::done;
  Error error;  // of failed
};

class Executor {
 public:
  // Both outlive the executor, which outlives its lanes.
  Executor(KernelRunner& kernels, FfnPort& port) : device_(kernels), port_(port) {}
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  Device& device() { return device_; }
  FfnPort& port() { return port_; }

  // Lane ids are the caller's; unique among the lanes of one port. invalid_argument: the program was built
  // for another side of the experts than the port is. resource_exhausted: no memory for the buffers.
  Result<std::unique_ptr<Lane>> create_lane(std::shared_ptr<const Program> program, LaneId id);

  // Begins a step; computes nothing yet. invalid_argument: no rows, more rows or logits than the capacity, a
  // row or a token id out of range, or a lane whose step has not ended.
  Status start(Lane& lane, const StepBatch& batch);

  // Runs until the step has ended (done, failed) or must wait. A failed step leaves the lane free; cache
  // entries of its rows are then undefined. Polls once by itself before it says waiting.
  Advance advance(Lane& lane);

  // Fetches completions from the port and marks the lanes that may go on. Returns how many lanes it marked.
  size_t poll();

  // Ends the step in work, if any: after it returns nobody writes the lane's buffers.
  void cancel(Lane& lane);

 private:
  void end_step(Lane& lane);

  CpuDevice device_;
  FfnPort& port_;
  std::vector<Lane*> active_;
};

}  // namespace tandem
