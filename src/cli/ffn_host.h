// FfnHost: builds the FFN role of this process from settings: reads the experts that the role holds and
// starts the worker.
#pragma once

#include <memory>
#include <string>

#include "cli/engine_host.h"
#include "cli/settings.h"

namespace tandem {

class FfnHost {
 public:
  // Listens on `address`. `roles`: how many roles share this host's CPUs.
  static Result<std::unique_ptr<FfnHost>> create(const Settings& settings, const std::string& address,
                                                 int roles);
  ~FfnHost();

  const RankFacts& facts() const;  // facts().address: where attention connects
  // One line for a log: tiles, rows, groups, clients a group, compute time.
  std::string report() const;
  void stop(Duration drain_limit);

 private:
  struct Impl;
  explicit FfnHost(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem
