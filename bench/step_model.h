// StepModel: a whole random model in this process that runs steps: decode of a batch, or a chunk of a prompt.
// Caches are filled, nothing was computed for them. One thread.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "attention/sampler.h"
#include "base/result.h"
#include "bench/random_model.h"
#include "bench/step_cost.h"
#include "kernels/kernel_table.h"
#include "model/model.h"
#include "moe/local_ffn.h"
#include "program/executor.h"

namespace tandem::bench {

// The rows of every step: the same positions each time, with tokens of their own.
struct StepPlan {
  std::vector<StepRows> sequences;
  bool all_logits = true;  // decode: every row is sampled; prefill: the last one
  uint32_t rows() const;
};

class StepModel {
 public:
  // `model` and `kernels` outlive it. resource_exhausted: the caches do not fit, named.
  // unsupported: options that the model refuses.
  static Result<std::unique_ptr<StepModel>> create(const ModelConfig& config, const RandomModel& model,
                                                   KernelRunner& kernels, const StepPlan& plan, uint64_t seed,
                                                   const ModelOptions& options = {});

  // One step with new random tokens, and the greedy choice of the next ones; what it had to read and compute.
  // internal: a logit that is not finite.
  Result<StepCost> run();

  // Experts whose weights the last step read, over all layers.
  uint64_t experts_read() const { return experts_read_; }

 private:
  StepModel(const ModelConfig& config, const RandomModel& model, KernelRunner& kernels, const StepPlan& plan,
            uint64_t seed)
      : config_(config), model_(model), kernels_(kernels), plan_(plan), random_(seed) {}
  Status make_caches(std::span<const StateGroupSpec> specs, StateCaches& caches);
  Status make_block();

  struct Group {
    OwnedBuffer memory;
    std::vector<std::vector<int32_t>> tables;  // [sequences]
    std::vector<AttentionRow> rows;
  };

  const ModelConfig& config_;
  const RandomModel& model_;
  KernelRunner& kernels_;
  StepPlan plan_;
  uint64_t random_;
  std::unique_ptr<Model> built_;
  std::vector<Group> groups_;
  std::unique_ptr<MoeBlock> block_;
  std::unique_ptr<LocalFfn> ffn_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<Lane> lane_;
  std::vector<int32_t> token_ids_;
  std::vector<uint32_t> logit_rows_;
  std::vector<std::span<const AttentionRow>> group_rows_;
  Sampler sampler_;
  StepId next_step_ = 1;
  uint64_t experts_read_ = 0;
};

}  // namespace tandem::bench
