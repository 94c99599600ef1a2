// AttentionWorker: the attention role's engine. One thread of its own schedules, runs the lanes' steps over
// an FfnPort, samples and calls the sinks. A decode lane and a prefill lane step independently, so that one
// computes while the other waits for the experts.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "attention/block_pool.h"
#include "attention/engine.h"
#include "attention/scheduler.h"
#include "program/executor.h"

namespace tandem {

struct AttentionWorkerOptions {
  SchedulerLimits scheduler;
  uint32_t max_context_tokens = 4096;  // prompt + generated
  uint32_t max_queue = 1024;           // requests that wait; one more is refused
  uint32_t vocab_size = 0;             // ids that a prompt may hold
  std::vector<int32_t> eos_token_ids;
  Duration ffn_deadline =
      std::chrono::seconds(60);  // of one exchange: a backstop; a dead peer is noticed far sooner
};

// What the two lanes run. The capacities are those of the scheduler's limits: max_num_seqs rows for decode,
// max_num_batched_tokens for prefill. Built with the pool's layer views.
struct AttentionPrograms {
  std::shared_ptr<const Program> decode, prefill;
};

class AttentionWorker final : public Engine {
 public:
  // `kernels` and `port` outlive the worker and are used by its thread alone from now on.
  static Result<std::unique_ptr<AttentionWorker>> create(const AttentionWorkerOptions& options,
                                                         BlockPool pool, AttentionPrograms programs,
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
