// Connecting: a connection that is being made, as a machine that never waits. Who has a peer to serve
// meanwhile, or may be told to stop, drives it between other things; `connect` of endpoint.h drives it to its
// end. One thread at a time.
#pragma once

#include <poll.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "transport/endpoint.h"

namespace tandem {

class Connecting {
 public:
  virtual ~Connecting() = default;
  // Goes as far as it can without waiting. Null: not there yet. An error ends it, as past
  // options.connect_limit does (deadline_exceeded); a message about a connection that stood names both its
  // addresses.
  virtual Result<std::unique_ptr<Endpoint>> advance() = 0;
  // What to wait for before the next `advance`, and no longer than kConnectingPause: nothing tells of the
  // deadline, nor of room in the backlog of a Unix socket.
  virtual std::vector<pollfd> waits_for() const = 0;
};

// How late a stop or a deadline is noticed; as often, one looks at what no descriptor tells.
inline constexpr Duration kConnectingPause = std::chrono::milliseconds(10);

// Begins to connect. Asks the resolver for a host's addresses, which takes as long as the system lets it; the
// rest does not block. Errors as `connect`, at once or from `advance`.
Result<std::unique_ptr<Connecting>> start_connecting(const std::string& address,
                                                     const EndpointOptions& options);

// As `connect`, until `stop`: cancelled.
Result<std::unique_ptr<Endpoint>> connect(const std::string& address, const EndpointOptions& options,
                                          const std::atomic<bool>& stop);

}  // namespace tandem
