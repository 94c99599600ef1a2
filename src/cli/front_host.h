// The two ends of a deployment with several attention ranks, built from settings: AttentionHost is one rank
// (EngineHost behind an EngineServer), FrontHost is what stands in front (no weights).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cli/engine_host.h"

namespace tandem {

class AttentionHost {
 public:
  // Listens on `address` once the engine stands. settings.afd.attention_rank is this rank.
  static Result<std::unique_ptr<AttentionHost>> create(const Settings& settings,
                                                       const std::vector<std::string>& ffn_addresses,
                                                       const std::string& address, int roles);
  ~AttentionHost();

  const RankFacts& facts() const;  // facts().address: where fronts connect
  void stop(Duration drain_limit);

 private:
  struct Impl;
  explicit AttentionHost(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

class FrontHost {
 public:
  // Waits for every rank, at most afd.connect_timeout_s. Of the model folder, tokenizer and defaults are
  // needed; where the weights lie there, too, their fingerprint is compared.
  static Result<std::unique_ptr<FrontHost>> connect(const Settings& settings,
                                                    const std::vector<std::string>& addresses);
  ~FrontHost();

  Engine& engine();
  std::vector<RankFacts> ranks() const;  // as they stated them in their last hello

 private:
  struct Impl;
  explicit FrontHost(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem
