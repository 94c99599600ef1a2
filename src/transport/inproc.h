// inproc://name: both ends in one process, over the same rings, checks, credits and liveness as shm, without
// a socket. Names live in a registry of the process. For the local split, for tests, and as the plainest
// endpoint to read. Threads: as endpoint.h says; the registry is locked.
#pragma once

#include <memory>

#include "transport/address.h"
#include "transport/connecting.h"
#include "transport/endpoint.h"

namespace tandem::inproc {

// invalid_argument: the name is taken.
Result<std::unique_ptr<Listener>> listen(const Address& address, const EndpointOptions& options);

// not_found: nobody listens under the name. Does not wait for the accept: messages may be sent at once.
Result<std::unique_ptr<Connecting>> connect(const Address& address, const EndpointOptions& options);

}  // namespace tandem::inproc
