// BalancedEngine: one Engine in front of several: each request goes to the rank with the best score
// (rank_choice.h), and stays there. A rank that does not serve gets nothing; while at least one serves, so
// does this. Stats are sums, limits the smallest of all ranks. Any thread may call.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "attention/engine.h"

namespace tandem {

class BalancedEngine final : public Engine {
 public:
  struct Rank {
    std::string name;  // "attention rank 0 at tcp://host:7100"
    std::unique_ptr<Engine> engine;
  };
  // At least one rank; their limits are known and do not shrink.
  explicit BalancedEngine(std::vector<Rank> ranks);
  ~BalancedEngine() override;

  const EngineLimits& limits() const override;
  // resource_exhausted when the queues of all that serve are full, unavailable when none serves.
  Result<RequestId> submit(GenerationRequest request, std::shared_ptr<GenerationSink> sink) override;
  void cancel(RequestId id) override;
  EngineStats stats() const override;
  Status health() const override;
  std::vector<EngineRank> ranks() const override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem
