// Sockets: names, addresses and waiting with a deadline, shared by tcp and shm. Any thread.
#pragma once

#include <sys/socket.h>

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "transport/address.h"
#include "transport/unique_fd.h"

namespace tandem {

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
  int family() const { return storage.ss_family; }
};

// IPv4 and IPv6 addresses of a host, in the order in which the system prefers them. Asks the resolver, which
// can take as long as the system lets it. An empty host: all interfaces, for listening.
Result<std::vector<SocketAddress>> resolve(const HostPort& host_port, std::string_view whole);

// "tcp://10.0.0.2:7000".
std::string tcp_name(const SocketAddress& address, std::string_view scheme = "tcp");
std::string tcp_name_of_local_end(int socket, std::string_view scheme = "tcp");

// How many connections a listener takes a call; the rest waits for the next call.
inline constexpr int kAcceptsPerCall = 128;
// Connections that have not said hello yet. More than any deployment connects at once; a port scanner gets no
// more.
inline constexpr size_t kMaxHandshakes = 64;

// The host of a peer as a number, for counting: an IPv4 address, or the network half of an IPv6 one, whose
// other half is its owner's to choose. 0: a peer on a Unix socket.
uint64_t host_number(const SocketAddress& address);

// Which of the connections that shake hands makes room for a new one: the oldest of the host that has most.
// Whoever opens many from one host pushes out its own. `hosts`: of the oldest first, at least one.
size_t whom_to_drop(std::span<const uint64_t> hosts);

struct Accepted {
  UniqueFd socket;     // non-blocking; none: nobody waits, or who did died while it waited
  SocketAddress peer;  // of a tcp peer
  bool none_waits = false;
};
// Takes one connection of a non-blocking listener. resource_exhausted: no descriptor or memory for it.
Result<Accepted> accept_connection(int listener, const std::string& address);

// Waits until the socket is readable (or writable, or failed). False after the deadline.
bool wait_for_socket(int socket, bool to_write, Instant deadline);

}  // namespace tandem
