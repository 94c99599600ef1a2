// EngineServer: an Engine of this process, offered to fronts over our transports. It listens only once the
// engine stands: a rank that is not ready has no address, and gets nothing.
//
// Threads: an I/O thread of its own accepts, receives, sends and keeps liveness. The engine's thread appends
// events to an outbox and never waits for a front; a front that reads too slowly loses its requests, by name.
// A front that is gone has its requests cancelled. Requests whose answer has a form go to the engine on a
// thread of their own: compiling one may take longer than fronts wait for a heartbeat. The public functions
// may be called by any thread.
#pragma once

#include <memory>
#include <string>

#include "attention/engine.h"
#include "serving/engine_wire.h"
#include "transport/endpoint.h"

namespace tandem {

struct EngineServerOptions {
  std::string listen_address;
  EngineIdentity identity;   // role attention; the engine's limits are added
  uint32_t max_fronts = 64;  // connections; one more is refused
  // Events of one front that may wait, some minutes of tokens of a large batch: far beyond what a front that
  // lives leaves unread.
  size_t max_pending_bytes = size_t{16} << 20;
  Duration hello_limit = std::chrono::seconds(5);  // for a connection to say who it is
  // How often fronts hear the counts that they balance by. A change of health goes out at the next look,
  // every half heartbeat.
  Duration state_interval = std::chrono::milliseconds(100);
  Duration heartbeat_interval = EndpointOptions{}.heartbeat_interval;
  Duration silence_limit = EndpointOptions{}.silence_limit;
  // How peers must know each other over tcp and ucx; null: not at all.
  std::shared_ptr<const PeerSecurity> security = nullptr;
};

class EngineServer {
 public:
  // `engine` outlives the server.
  static Result<std::unique_ptr<EngineServer>> start(EngineServerOptions options, Engine& engine);
  // Like stop(0).
  ~EngineServer();

  // Where fronts connect, with the port that the system chose.
  const std::string& address() const;
  // Takes no new requests, lets the open ones end within `drain`, then cancels them. May be called twice.
  void stop(Duration drain);
  // Fronts that have said hello.
  uint32_t fronts() const;

 private:
  struct Impl;
  explicit EngineServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem
