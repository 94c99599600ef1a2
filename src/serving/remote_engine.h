// RemoteEngine: the Engine of an attention rank in another process (EngineServer), as a front sees it.
//
// Threads: any thread may call; no call waits for the peer. An I/O thread of its own connects, sends,
// receives, calls the sinks, and keeps liveness: when the connection is lost or silent, every open request
// ends with `unavailable` naming the rank, `health` and `submit` say so, and a new connection with a full
// hello is tried every `reconnect_interval`. Until the rank has stated that it serves it gets nothing.
//
// Promises of the peer are checked: limits may not shrink and the model may not change while this lives.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>

#include "attention/engine.h"
#include "serving/engine_wire.h"
#include "transport/endpoint.h"

namespace tandem {

struct RemoteEngineOptions {
  std::string address;
  uint32_t rank = 0;                                   // that the peer must be
  EngineIdentity identity;                             // role front
  Duration handshake_limit = std::chrono::seconds(5);  // of each connection; a hello is two small messages
  Duration reconnect_interval = std::chrono::milliseconds(100);
  Duration heartbeat_interval = EndpointOptions{}.heartbeat_interval;
  Duration silence_limit = EndpointOptions{}.silence_limit;
  // How peers must know each other over tcp and ucx; null: not at all.
  std::shared_ptr<const PeerSecurity> security = nullptr;
};

class RemoteEngine final : public Engine {
 public:
  // Begins to connect and returns at once.
  static Result<std::unique_ptr<RemoteEngine>> start(const RemoteEngineOptions& options);
  // What came of it: nothing yet, a rank that has stated its limits and how it is, so that it takes requests,
  // or an error that another try cannot mend (another model, another rank).
  std::optional<Status> start_result() const;
  std::string waiting_for() const;  // why there is no connection, or why there was none last
  // Ends every open request (cancelled) and leaves.
  ~RemoteEngine() override;

  // Once start_result() has a value.
  const EngineLimits& limits() const override;
  Result<RequestId> submit(GenerationRequest request, std::shared_ptr<GenerationSink> sink) override;
  void cancel(RequestId id) override;
  // Counts as the rank stated them last; nothing waits or runs on a rank that is lost. Totals go on from
  // those of its earlier processes: none ever falls.
  EngineStats stats() const override;
  Status health() const override;

  const std::string& label() const;  // "attention rank 0 at tcp://host:7100"
  EngineIdentity peer() const;       // as of the last hello
  uint64_t connections() const;      // so far

 private:
  struct Impl;
  explicit RemoteEngine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem
