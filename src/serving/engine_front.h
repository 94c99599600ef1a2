// EngineFront: connects to all attention ranks of a deployment and stands a BalancedEngine before them.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "attention/engine.h"
#include "serving/engine_wire.h"
#include "serving/remote_engine.h"

namespace tandem {

struct EngineFrontOptions {
  std::vector<std::string> addresses;               // of attention rank 0, 1, ...
  EngineIdentity identity;                          // role front
  Duration start_limit = std::chrono::minutes(30);  // they read their weights, and may be started later
  const std::atomic<bool>* give_up = nullptr;       // set by a signal handler: ends the waiting (cancelled)
  Duration silence_limit = EndpointOptions{}.silence_limit;
  // How peers must know each other over tcp and ucx; null: not at all.
  std::shared_ptr<const PeerSecurity> security = nullptr;
};

class EngineFront {
 public:
  // Blocks until every rank has said hello and serves, or `start_limit` is over (deadline_exceeded, saying
  // what was waited for). What another try cannot mend (another model, a wrong rank, ranks that differ among
  // themselves) fails at once, by name.
  static Result<std::unique_ptr<EngineFront>> connect(const EngineFrontOptions& options);
  ~EngineFront();

  Engine& engine();
  std::vector<EngineIdentity> peers() const;  // as of the last hello of each, in order of rank

 private:
  struct Impl;
  explicit EngineFront(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem
