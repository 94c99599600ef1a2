// Listening and connecting tcp sockets, for the transports that talk over one: tcp, and ucx for everything
// but messages. Names of peers begin with the scheme of the address. Any thread.
#pragma once

#include "base/clock.h"
#include "transport/address.h"
#include "transport/unique_fd.h"

namespace tandem {

struct TcpListenSocket {
  UniqueFd socket;
  UniqueFd epoll;  // holds the socket; connections that are shaking hands join it
};
// invalid_argument: the address is taken, not of this machine or not allowed; unavailable: what else the
// system says.
Result<TcpListenSocket> listen_tcp(const Address& address);

// A connected non-blocking socket. Blocks until the deadline; `limit` is what the message names. unavailable:
// nobody listens there; deadline_exceeded: no answer.
Result<UniqueFd> connect_tcp(const Address& address, Instant deadline, Duration limit);

// Closing this socket says so at once, by a reset. For a peer that is silent: packets may be lost in its
// direction to us only, and then an end in order would wait behind what it could not acknowledge.
void reset_at_close(int socket);

// A tile waits for no acknowledgement.
void set_no_delay(int socket);

}  // namespace tandem
