// RandomModel: the weights of a whole model, random and made in place in the formats in which the engine
// holds them: no file is read or written. One thread calls; the pool's work.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "base/result.h"
#include "base/thread_pool.h"
#include "kernels/kernel_table.h"
#include "model/load_plan.h"
#include "model/model_config.h"
#include "model/model_weights.h"

namespace tandem::bench {

struct RandomModelOptions {
  // Of matrices that a loader keeps in codes where files have them: projections, dense and shared MLPs; and
  // of the routed experts. Routers and absorbed projections are bf16, vectors float32, as always; heads too
  // but in int8 and mxfp8, which are made at load.
  PackFormat weights = PackFormat::bf16, experts = PackFormat::bf16;
  uint64_t most_bytes = 0;  // 0: what the machine has left
  uint64_t seed = 1;
};

struct RandomModel {
  ModelWeights weights;
  // As packed, by role; vectors with them. Of `experts` all that are there. What a step reads and multiplies
  // of latent attention in its absorbed form.
  std::array<uint64_t, kWeightRoles> role_bytes{};
  // Multiply-adds of one row, twice, by role; not of experts (6 * hidden * intermediate each).
  std::array<double, kWeightRoles> role_flops{};
  uint64_t expert_bytes = 0;  // of one routed expert

  uint64_t bytes(WeightRole role) const { return role_bytes[static_cast<size_t>(role)]; }
  double flops(WeightRole role) const { return role_flops[static_cast<size_t>(role)]; }
};

// The bytes that make_random_model would take.
uint64_t random_model_bytes(const ModelConfig& config, const KernelTable& table,
                            const RandomModelOptions& options);

// Weights of equal shape have equal values, routers and embeddings aside: making them takes the time of
// writing memory. resource_exhausted: they do not fit, with what would do.
Result<std::unique_ptr<RandomModel>> make_random_model(const ModelConfig& config, const KernelTable& table,
                                                       ThreadPool& pool, const RandomModelOptions& options);

}  // namespace tandem::bench
