#include "transport/tcp_socket.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>

#include <cerrno>

#include "transport/socket.h"
#include "transport/system_error.h"

namespace tandem {
namespace {

constexpr int kBacklog = 128;

}  // namespace

void set_no_delay(int socket) {
  const int on = 1;
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

void reset_at_close(int socket) {
  const linger at_once{1, 0};
  setsockopt(socket, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
}

Result<UniqueFd> listen_tcp(const Address& address) {
  const std::string whole = address.scheme + "://" + address.rest;
  TANDEM_ASSIGN(const HostPort host_port, parse_host_port(address.rest, whole));
  TANDEM_ASSIGN(const auto candidates, resolve(host_port, whole));
  int error = EADDRNOTAVAIL;
  for (const SocketAddress& candidate : candidates) {
    UniqueFd socket(::socket(candidate.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    const int on = 1;
    if (socket)
      setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on,
                 sizeof(on));  // connections of a past run may linger
    if (!socket || bind(socket.get(), candidate.get(), candidate.length) != 0 ||
        ::listen(socket.get(), kBacklog) != 0) {
      error = errno;
      continue;
    }
    return socket;
  }
  switch (error) {
    case EADDRINUSE:
      return make_error(
          ErrorCode::invalid_argument,
          "address " + whole + " is taken by another process; choose another port, or 0 for any free one");
    case EADDRNOTAVAIL:
      return make_error(
          ErrorCode::invalid_argument,
          "address " + whole + " is not an address of this machine; use one that it has, or 0.0.0.0");
    case EACCES:
      return make_error(ErrorCode::invalid_argument,
                        "address " + whole + ": no right to use this port; choose one above 1023");
    default:
      return make_error(ErrorCode::unavailable, "cannot listen at " + whole + ": " + system_message(error));
  }
}

Result<TcpConnector> TcpConnector::start(const Address& address, Duration limit) {
  const Instant began = now();
  const std::string whole = address.scheme + "://" + address.rest;
  TANDEM_ASSIGN(const HostPort host_port, parse_host_port(address.rest, whole));
  if (host_port.host.empty() || host_port.port == 0) {
    return make_error(ErrorCode::invalid_argument,
                      "address \"" + whole + "\": connecting needs a host and a port that is not 0");
  }
  TANDEM_ASSIGN(auto targets, resolve(host_port, whole));
  if (targets.empty())
    return make_error(ErrorCode::not_found, "address " + whole + ": the host has no address");
  TcpConnector connector(address, std::move(targets), limit);
  connector.deadline_ = began + limit;  // the resolver's time counts
  return connector;
}

TcpConnector::TcpConnector(const Address& address, std::vector<SocketAddress> targets, Duration limit)
    : scheme_(address.scheme),
      whole_(address.scheme + "://" + address.rest),
      limit_(limit),
      deadline_(now() + limit),
      targets_(std::move(targets)) {}

// errno, or EINPROGRESS.
int TcpConnector::begin(const SocketAddress& target) {
  const Instant at = now();
  next_limit_ = at + (deadline_ - at) / static_cast<int64_t>(targets_.size() - next_);
  socket_ = UniqueFd(::socket(target.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket_) return errno;
  return ::connect(socket_.get(), target.get(), target.length) == 0 ? outcome(target) : errno;
}

// Of a connect that has ended.
int TcpConnector::outcome(const SocketAddress& target) const {
  int error = 0;
  socklen_t length = sizeof(error);
  getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &error, &length);
  // A port of the ephemeral range that nobody listens at can be given to this very socket: it then talks to
  // itself.
  if (error == 0 && tcp_name_of_local_end(socket_.get()) == tcp_name(target)) return ECONNREFUSED;
  return error;
}

Result<UniqueFd> TcpConnector::advance() {
  for (;;) {
    const SocketAddress& target = targets_[next_];
    const std::string resolved = tcp_name(target, scheme_);
    const std::string name = resolved == whole_ ? whole_ : whole_ + " (" + resolved + ")";
    int error = 0;
    if (!socket_) {
      error = begin(target);
    } else {
      pollfd writable{socket_.get(), POLLOUT, 0};
      error = ::poll(&writable, 1, 0) > 0 ? outcome(target) : EINPROGRESS;
    }
    if (error == 0) {
      set_no_delay(socket_.get());
      return std::move(socket_);
    }
    const bool is_last = next_ + 1 == targets_.size();
    if (error == EINPROGRESS && now() < (is_last ? deadline_ : next_limit_)) return UniqueFd();
    if (error == EINPROGRESS && is_last) {
      const auto milliseconds = std::chrono::duration_cast<std::chrono::milliseconds>(limit_).count();
      return make_error(ErrorCode::deadline_exceeded,
                        "no answer from " + name + " to " + tcp_name_of_local_end(socket_.get(), scheme_) +
                            " within " + std::to_string(milliseconds) +
                            " ms; check the address, the network and the firewall");
    }
    const bool out_of_descriptors = !socket_;
    socket_.reset();
    if (out_of_descriptors) {
      return make_error(ErrorCode::resource_exhausted,
                        "cannot connect to " + name + ": " + system_message(error));
    }
    if (++next_ == targets_.size()) {
      return make_error(ErrorCode::unavailable, "cannot connect to " + name + ": " + system_message(error) +
                                                    "; start the peer first, or check the address");
    }
  }
}

}  // namespace tandem
