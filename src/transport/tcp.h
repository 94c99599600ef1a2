// tcp://host:port: one connection carries messages, credits and heartbeats (tcp_frame.h). Both sides begin
// with a hello frame; the one that accepted answers before it compares, so that both can name a difference.
// IPv4 and IPv6. Nothing relies on TCP keepalive: silence is judged by our own heartbeats.
#pragma once

#include <memory>

#include "transport/address.h"
#include "transport/connecting.h"
#include "transport/endpoint.h"

namespace tandem::tcp {

// Port 0: the system chooses. An empty host: all interfaces. invalid_argument: the port is taken, the address
// is not of this machine, or the port needs rights.
Result<std::unique_ptr<Listener>> listen(const Address& address, const EndpointOptions& options);

// unavailable: refused or unreachable; deadline_exceeded: no answer, naming both ends; data_loss: not this
// protocol.
Result<std::unique_ptr<Connecting>> connect(const Address& address, const EndpointOptions& options);

}  // namespace tandem::tcp
