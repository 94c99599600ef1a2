// Transport "ucx": messages over UCX active messages (RDMA, shared memory, tcp: what UCX finds, or UCX_TLS
// says); greeting, heartbeats, goodbye and death over a tcp connection of our own. Threads: as endpoint.h
// says.
//
// Handshake, over the tcp connection: each side its greeting (hello with carrier ucx), then a frame with the
// address of its UCX worker; then each sends a hello over UCX, and the connection stands when both have come
// through. UCX trusts the peer that a worker's address leads to, and accepts on ports of its own: use it
// inside a trusted network, as its other users do.
#pragma once

#include "transport/address.h"
#include "transport/connecting.h"
#include "transport/endpoint.h"

namespace tandem::ucx {

Result<std::unique_ptr<Listener>> listen(const Address& address, const EndpointOptions& options);
Result<std::unique_ptr<Connecting>> connect(const Address& address, const EndpointOptions& options);

}  // namespace tandem::ucx
