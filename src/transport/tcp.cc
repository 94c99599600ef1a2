#include "transport/tcp.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "base/log.h"
#include "transport/hello.h"
#include "transport/socket.h"
#include "transport/system_error.h"
#include "transport/tcp_endpoint.h"

namespace tandem::tcp {
namespace {

constexpr int kBacklog = 128;

constexpr size_t kGreetingBytes = TcpFrameLayout::kHeaderBytes + HelloLayout::kBytes;

std::array<std::byte, kGreetingBytes> make_greeting(const EndpointOptions& options) {
  std::array<std::byte, kGreetingBytes> bytes;
  const auto header = TcpFrameLayout::encode({TcpFrameKind::hello, Channel::control, HelloLayout::kBytes});
  const auto hello = HelloLayout::encode(options);
  std::memcpy(bytes.data(), header.data(), header.size());
  std::memcpy(bytes.data() + header.size(), hello.data(), hello.size());
  return bytes;
}

Result<void> match_greeting(std::span<const std::byte, kGreetingBytes> bytes, const EndpointOptions& options,
                            std::string_view local, std::string_view remote) {
  const auto frame = TcpFrameLayout::decode(bytes.first<TcpFrameLayout::kHeaderBytes>());
  const bool is_hello = frame && frame->kind == TcpFrameKind::hello && frame->value == HelloLayout::kBytes;
  return match_hello(options, local,
                     is_hello ? bytes.subspan(TcpFrameLayout::kHeaderBytes) : std::span<const std::byte>(),
                     remote);
}

void set_no_delay(int socket) {
  const int on = 1;
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));  // a tile waits for no acknowledgement
}

class TcpListener final : public Listener {
 public:
  TcpListener(UniqueFd socket, UniqueFd epoll, const EndpointOptions& options)
      : socket_(std::move(socket)),
        epoll_(std::move(epoll)),
        options_(options),
        address_(tcp_name_of_local_end(socket_.get())) {}

  int fd() const override { return epoll_.get(); }
  const std::string& address() const override { return address_; }
  std::optional<Error> take_mismatch() override { return std::exchange(mismatch_, std::nullopt); }

  Result<std::unique_ptr<Endpoint>> accept() override {
    TANDEM_TRY(take_connections());
    for (size_t i = 0; i < handshakes_.size();) {
      const Step step = advance(handshakes_[i]);
      if (step == Step::waits) {
        ++i;
        continue;
      }
      Handshake done = std::move(handshakes_[i]);
      handshakes_.erase(handshakes_.begin() + static_cast<ptrdiff_t>(i));
      if (step == Step::refused) continue;
      epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, done.socket.get(), nullptr);
      auto endpoint = TcpEndpoint::create(std::move(done.socket), done.peer, options_);
      if (endpoint) return endpoint;
      log_warning("refused " + done.peer + ": " + endpoint.error().message);
    }
    return nullptr;
  }

 private:
  struct Handshake {
    UniqueFd socket;
    std::string peer;
    Instant deadline;
    std::array<std::byte, kGreetingBytes> greeting;
    size_t received = 0;
  };
  enum class Step { waits, refused, done };

  Result<void> take_connections() {
    for (int i = 0; i < kAcceptsPerCall; ++i) {
      TANDEM_ASSIGN(Accepted taken, accept_connection(socket_.get(), address_));
      if (taken.none_waits) return {};
      if (!taken.socket) continue;
      UniqueFd socket = std::move(taken.socket);
      set_no_delay(socket.get());
      if (handshakes_.size() == kMaxHandshakes) {
        log_warning("dropped " + handshakes_.front().peer + ": too many connections that say nothing");
        handshakes_.erase(handshakes_.begin());
      }
      epoll_event event{};
      event.events = EPOLLIN;
      epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, socket.get(), &event);
      handshakes_.push_back({std::move(socket), tcp_name(taken.peer), now() + options_.connect_limit, {}, 0});
    }
    return {};
  }

  Step advance(Handshake& handshake) {
    const auto refuse = [&](const std::string& why) {
      log_warning("refused " + handshake.peer + " at " + address_ + ": " + why);
      return Step::refused;
    };
    const ssize_t got = recv(handshake.socket.get(), handshake.greeting.data() + handshake.received,
                             kGreetingBytes - handshake.received, MSG_DONTWAIT);
    if (got == 0) return refuse("it closed before its hello was complete");
    if (got < 0) {
      if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) return refuse(system_message(errno));
      if (now() >= handshake.deadline) return refuse("no hello within the connect_limit");
      return Step::waits;
    }
    handshake.received += static_cast<size_t>(got);
    if (handshake.received < kGreetingBytes) {
      // Something else that talks (a browser, a scanner) is not waited for.
      if (handshake.received >= TcpFrameLayout::kHeaderBytes &&
          !TcpFrameLayout::decode(std::span(handshake.greeting).first<TcpFrameLayout::kHeaderBytes>())) {
        return refuse("it does not speak Tandem's transport");
      }
      return Step::waits;
    }
    // Answered before it is compared: the other side names the difference as well.
    const auto greeting = make_greeting(options_);
    const ssize_t sent =
        send(handshake.socket.get(), greeting.data(), greeting.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    const auto matched = match_greeting(handshake.greeting, options_, address_, handshake.peer);
    if (!matched) {
      if (matched.error().code == ErrorCode::invalid_argument) mismatch_ = matched.error();
      return refuse(matched.error().message);
    }
    if (sent != static_cast<ssize_t>(greeting.size())) return refuse("it did not take our hello");
    return Step::done;
  }

  UniqueFd socket_;
  UniqueFd epoll_;  // the listening socket and those that have not said hello
  EndpointOptions options_;
  std::string address_;
  std::vector<Handshake> handshakes_;
  std::optional<Error> mismatch_;
};

// Tries one resolved address.
Result<UniqueFd> connect_socket(const SocketAddress& target, const std::string& name, Instant deadline,
                                Duration limit) {
  UniqueFd socket(::socket(target.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket)
    return make_error(ErrorCode::resource_exhausted,
                      "cannot connect to " + name + ": " + system_message(errno));
  int error = 0;
  if (::connect(socket.get(), target.get(), target.length) != 0) error = errno;
  if (error == EINPROGRESS) {
    if (!wait_for_socket(socket.get(), true, deadline)) {
      const auto milliseconds = std::chrono::duration_cast<std::chrono::milliseconds>(limit).count();
      return make_error(ErrorCode::deadline_exceeded,
                        "no answer from " + name + " to " + tcp_name_of_local_end(socket.get()) + " within " +
                            std::to_string(milliseconds) +
                            " ms; check the address, the network and the firewall");
    }
    socklen_t length = sizeof(error);
    getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &length);
  }
  // A port of the ephemeral range that nobody listens at can be given to this very socket: it then talks to
  // itself.
  if (error == 0 && tcp_name_of_local_end(socket.get()) == tcp_name(target)) error = ECONNREFUSED;
  if (error != 0) {
    return make_error(ErrorCode::unavailable, "cannot connect to " + name + ": " + system_message(error) +
                                                  "; start the peer first, or check the address");
  }
  set_no_delay(socket.get());
  return socket;
}

}  // namespace

Result<std::unique_ptr<Listener>> listen(const Address& address, const EndpointOptions& options) {
  const std::string whole = "tcp://" + address.rest;
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
    UniqueFd epoll(epoll_create1(EPOLL_CLOEXEC));
    epoll_event event{};
    event.events = EPOLLIN;
    if (!epoll || epoll_ctl(epoll.get(), EPOLL_CTL_ADD, socket.get(), &event) != 0) {
      error = errno;
      continue;
    }
    return std::make_unique<TcpListener>(std::move(socket), std::move(epoll), options);
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

Result<std::unique_ptr<Endpoint>> connect(const Address& address, const EndpointOptions& options) {
  const std::string whole = "tcp://" + address.rest;
  TANDEM_ASSIGN(const HostPort host_port, parse_host_port(address.rest, whole));
  if (host_port.host.empty() || host_port.port == 0) {
    return make_error(ErrorCode::invalid_argument,
                      "address \"" + whole + "\": connecting needs a host and a port that is not 0");
  }
  const Instant deadline = now() + options.connect_limit;
  TANDEM_ASSIGN(const auto candidates, resolve(host_port, whole));
  Result<UniqueFd> socket =
      make_error(ErrorCode::not_found, "address " + whole + ": the host has no address");
  for (const SocketAddress& candidate : candidates) {
    const std::string resolved = tcp_name(candidate);
    socket = connect_socket(candidate, resolved == whole ? whole : whole + " (" + resolved + ")", deadline,
                            options.connect_limit);
    if (socket) break;
  }
  if (!socket) return std::unexpected(socket.error());
  const std::string local = tcp_name_of_local_end(socket->get());
  const std::string what = "handshake of " + local + " with " + whole;
  TANDEM_TRY(write_fully(socket->get(), make_greeting(options), deadline, what));
  std::array<std::byte, kGreetingBytes> answer;
  TANDEM_TRY(read_fully(socket->get(), answer, deadline, what));
  TANDEM_TRY(match_greeting(answer, options, local, whole));
  return TcpEndpoint::create(std::move(*socket), whole, options);
}

}  // namespace tandem::tcp
