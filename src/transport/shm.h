// shm:///path: two processes of one user on one host share the slots of a connection (ring.h): kernels write
// a message where the peer reads it. The Unix socket at the path is for the handshake, heartbeats and the
// death event (shm_link.h).
//
// Handshake, one packet each way: the one that connects sends a hello (hello.h); the other answers with its
// hello and three descriptors (the memory, the doorbells of side 0 and 1), or with its hello and a text that
// says why not. Memory: 2 directions x 3 channels x slots_per_channel x slot_bytes a connection, all taken at
// the accept.
#pragma once

#include <memory>

#include "transport/address.h"
#include "transport/connecting.h"
#include "transport/endpoint.h"

namespace tandem::shm {

// Errors as UnixListenSocket::bind.
Result<std::unique_ptr<Listener>> listen(const Address& address, const EndpointOptions& options);

// Errors as connect_unix; resource_exhausted with the peer's words when it has no memory; unsupported:
// another user's.
Result<std::unique_ptr<Connecting>> connect(const Address& address, const EndpointOptions& options);

}  // namespace tandem::shm
