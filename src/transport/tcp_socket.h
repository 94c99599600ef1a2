// Listening and connecting tcp sockets, for the transports that talk over one: tcp, and ucx for everything
// but messages. Names of peers begin with the scheme of the address. Any thread.
#pragma once

#include "base/clock.h"
#include "transport/address.h"
#include "transport/socket.h"
#include "transport/unique_fd.h"

namespace tandem {

// A non-blocking socket that listens. invalid_argument: the address is taken, not of this machine or not
// allowed; unavailable: what else the system says.
Result<UniqueFd> listen_tcp(const Address& address);

// A socket that is being connected to one after the other of a host's addresses. One that does not answer has
// its share of the time and no more: many hosts have an IPv6 address that leads nowhere before one that
// works. One thread.
class TcpConnector {
 public:
  // Asks the resolver. `limit` begins now.
  static Result<TcpConnector> start(const Address& address, Duration limit);
  // The same for the host's addresses, at least one.
  TcpConnector(const Address& address, std::vector<SocketAddress> targets, Duration limit);

  // The connected non-blocking socket, or none yet: wait until `socket` is writable. unavailable: nobody
  // listens there; deadline_exceeded: no answer within the limit.
  Result<UniqueFd> advance();
  int socket() const { return socket_.get(); }
  Instant deadline() const { return deadline_; }

 private:
  int begin(const SocketAddress& target);
  int outcome(const SocketAddress& target) const;

  std::string scheme_;
  std::string whole_;
  Duration limit_;
  Instant deadline_;
  std::vector<SocketAddress> targets_;
  size_t next_ = 0;     // the target that is being tried
  Instant next_limit_;  // when the next one is, if there is one
  UniqueFd socket_;
};

// Closing this socket says so at once, by a reset. For a peer that is silent: packets may be lost in its
// direction to us only, and then an end in order would wait behind what it could not acknowledge.
void reset_at_close(int socket);

// A tile waits for no acknowledgement.
void set_no_delay(int socket);

}  // namespace tandem
