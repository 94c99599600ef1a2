#include "transport/socket.h"

#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "transport/system_error.h"

namespace tandem {

Result<std::vector<SocketAddress>> resolve(const HostPort& host_port, std::string_view whole) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | (host_port.host.empty() ? AI_PASSIVE : 0);
  addrinfo* list = nullptr;
  const int error = getaddrinfo(host_port.host.empty() ? nullptr : host_port.host.c_str(),
                                std::to_string(host_port.port).c_str(), &hints, &list);
  if (error != 0) {
    const bool unknown = error == EAI_NONAME;
    return make_error(unknown ? ErrorCode::not_found : ErrorCode::unavailable,
                      "address " + std::string(whole) + ": host \"" + host_port.host +
                          "\" cannot be resolved (" + gai_strerror(error) +
                          "); check the name, or write the IP address");
  }
  std::vector<SocketAddress> addresses;
  for (const addrinfo* info = list; info != nullptr; info = info->ai_next) {
    SocketAddress address;
    if (info->ai_addrlen > sizeof(address.storage)) continue;
    std::memcpy(&address.storage, info->ai_addr, info->ai_addrlen);
    address.length = info->ai_addrlen;
    addresses.push_back(address);
  }
  freeaddrinfo(list);
  return addresses;
}

std::string tcp_name(const SocketAddress& address, std::string_view scheme) {
  std::array<char, NI_MAXHOST> host{};
  std::array<char, NI_MAXSERV> port{};
  if (getnameinfo(address.get(), address.length, host.data(), host.size(), port.data(), port.size(),
                  NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return std::string(scheme) + "://?";
  }
  const bool is_ipv6 = address.family() == AF_INET6;
  return std::string(scheme) + "://" + (is_ipv6 ? "[" : "") + host.data() + (is_ipv6 ? "]:" : ":") +
         port.data();
}

std::string tcp_name_of_local_end(int socket, std::string_view scheme) {
  SocketAddress address;
  address.length = sizeof(address.storage);
  if (getsockname(socket, address.get(), &address.length) != 0) return std::string(scheme) + "://?";
  return tcp_name(address, scheme);
}

uint64_t host_number(const SocketAddress& address) {
  if (address.family() == AF_INET)
    return reinterpret_cast<const sockaddr_in*>(address.get())->sin_addr.s_addr;
  if (address.family() != AF_INET6) return 0;
  const in6_addr& host = reinterpret_cast<const sockaddr_in6*>(address.get())->sin6_addr;
  uint64_t number = 0;
  if (IN6_IS_ADDR_V4MAPPED(&host)) {
    std::memcpy(&number, &host.s6_addr[12], 4);
  } else {
    std::memcpy(&number, &host.s6_addr[0], sizeof(number));
  }
  return number;
}

size_t whom_to_drop(std::span<const uint64_t> hosts) {
  size_t oldest = 0;
  ptrdiff_t most = 0;
  for (size_t i = 0; i < hosts.size(); ++i) {
    const ptrdiff_t count = std::ranges::count(hosts, hosts[i]);
    if (count > most) {
      most = count;
      oldest = i;
    }
  }
  return oldest;
}

Result<Accepted> accept_connection(int listener, const std::string& address) {
  Accepted taken;
  taken.peer.length = sizeof(taken.peer.storage);
  const int socket = accept4(listener, taken.peer.get(), &taken.peer.length, SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (socket >= 0) {
    taken.socket = UniqueFd(socket);
    return taken;
  }
  if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)
    return no_descriptor(address + " cannot accept");
  // Every other error is of a connection that died while it waited: not our failure.
  taken.none_waits = errno == EAGAIN || errno == EWOULDBLOCK;
  return taken;
}

bool wait_for_socket(int socket, bool to_write, Instant deadline) {
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - now()).count();
    if (left <= 0) return false;
    pollfd wanted{socket, static_cast<short>(to_write ? POLLOUT : POLLIN), 0};
    const int count = ::poll(&wanted, 1, static_cast<int>(std::min<int64_t>(left, 1'000'000)));
    if (count > 0) return true;
    if (count < 0 && errno != EINTR) return false;
  }
}

}  // namespace tandem
