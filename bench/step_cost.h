// StepCost: what a step of a whole model has to read and to compute, counted. Values; any thread.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "bench/random_model.h"
#include "kernels/paged_kv_layout.h"
#include "model/model_config.h"

namespace tandem::bench {

// One sequence's rows in a step: positions [begin, begin + rows).
struct StepRows {
  uint32_t begin = 0, rows = 0;
};

// Bytes by part. Every weight counts once a step, experts as often as they are read; keys and values once a
// sequence: those of all positions that its rows may attend to.
struct StepCost {
  double attention = 0, dense = 0, router = 0, shared_experts = 0, experts = 0, head = 0;  // bytes of weights
  double embedding = 0, kv = 0;
  double flops = 0;
  // Of these, in the order of the bytes from `attention` to `head`, and of the scores and values of
  // attention.
  std::array<double, 6> weight_flops = {};
  double kv_flops = 0;
  double bytes() const {
    return attention + dense + router + shared_experts + experts + head + embedding + kv;
  }
  // What the parts take one after another when each is at the tighter of two roofs, in bytes and operations a
  // second: a batch may read its experts as fast as memory goes and be held up by arithmetic in its head.
  double least_seconds(double read_roof, double flop_roof) const;
};

// `kv`: of keys and values in the cache; `experts_read` and `expert_rows`: of MoeStats, over all layers of
// the step. `logit_rows`: rows of the head.
StepCost step_cost(const ModelConfig& config, const RandomModel& model, const PagedKvLayout& kv,
                   std::span<const StepRows> sequences, uint32_t logit_rows, uint64_t experts_read,
                   uint64_t expert_rows);

}  // namespace tandem::bench
