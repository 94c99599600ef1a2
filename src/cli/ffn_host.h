// FfnHost: builds the FFN role of this process from settings: reads the experts that the role holds and
// starts the worker.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "cli/engine_host.h"
#include "cli/rank_counters.h"
#include "cli/settings.h"
#include "model/model_config.h"
#include "moe/expert_placement.h"

namespace tandem {

// What FFN rank `rank` of `ranks` holds of the experts under settings.afd.placement, expert_slices and
// expert_replicas. invalid_argument: what cannot be with this model, see held_share.
Result<ExpertShare> held_experts(const ModelConfig& config, const Settings& settings, int64_t rank,
                                 int64_t ranks);

class FfnHost {
 public:
  // Listens on `address`; settings.afd.ffn_rank of num_ffn_ranks decides which experts it reads. `roles`: how
  // many roles share this host's CPUs.
  static Result<std::unique_ptr<FfnHost>> create(const Settings& settings, const std::string& address,
                                                 int roles);
  ~FfnHost();

  const RankFacts& facts() const;  // facts().address: where attention connects
  // One line for a log: tiles, rows, groups, clients a group, compute time.
  std::string report() const;
  // FfnWorker::misfit.
  std::optional<Error> misfit() const;
  RankCounters counters() const;  // any thread
  void stop(Duration drain_limit);

 private:
  struct Impl;
  explicit FfnHost(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem
