#include "transport/tcp.h"

#include <sys/epoll.h>

#include <array>
#include <cerrno>
#include <utility>
#include <vector>

#include "base/log.h"
#include "transport/socket.h"
#include "transport/system_error.h"
#include "transport/tcp_endpoint.h"
#include "transport/tcp_greeting.h"
#include "transport/tcp_socket.h"

namespace tandem::tcp {
namespace {

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
    const auto matched = match_greeting(handshake.greeting, options_, address_, handshake.peer,
                                        Carrier::messages, Unstated::adopted);
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

class TcpConnecting final : public Connecting {
 public:
  TcpConnecting(TcpConnector connector, const Address& address, const EndpointOptions& options)
      : connector_(std::move(connector)), whole_("tcp://" + address.rest), options_(options) {}

  std::vector<pollfd> waits_for() const override {
    if (socket_) return {{socket_.get(), POLLIN, 0}};
    return {{connector_.socket(), POLLOUT, 0}};
  }

  Result<std::unique_ptr<Endpoint>> advance() override {
    if (!socket_) {
      TANDEM_ASSIGN(socket_, connector_.advance());
      if (!socket_) return nullptr;
      local_ = tcp_name_of_local_end(socket_.get());
      const auto greeting = make_greeting(options_);
      // Far below what an empty socket takes at once.
      const ssize_t sent = send(socket_.get(), greeting.data(), greeting.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
      if (sent != static_cast<ssize_t>(greeting.size()))
        return failed(ErrorCode::unavailable, "the other side did not take our hello");
    }
    while (received_ < answer_.size()) {
      const ssize_t got =
          recv(socket_.get(), answer_.data() + received_, answer_.size() - received_, MSG_DONTWAIT);
      if (got > 0) {
        received_ += static_cast<size_t>(got);
      } else if (got == 0) {
        return failed(ErrorCode::unavailable, "the other side closed the connection; its log says why");
      } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
        if (now() < connector_.deadline()) return nullptr;
        return failed(ErrorCode::deadline_exceeded, "no answer within the connect_limit");
      } else if (errno != EINTR) {
        return failed(ErrorCode::unavailable, system_message(errno));
      }
    }
    TANDEM_ASSIGN(options_,
                  adopt_hello(options_, std::span(answer_).subspan(TcpFrameLayout::kHeaderBytes), whole_));
    TANDEM_TRY(match_greeting(answer_, options_, local_, whole_));
    return TcpEndpoint::create(std::move(socket_), whole_, options_);
  }

 private:
  std::unexpected<Error> failed(ErrorCode code, const std::string& why) const {
    return make_error(code, "handshake of " + local_ + " with " + whole_ + ": " + why);
  }

  TcpConnector connector_;
  const std::string whole_;
  EndpointOptions options_;
  UniqueFd socket_;  // connected, and has said hello
  std::string local_;
  std::array<std::byte, kGreetingBytes> answer_;
  size_t received_ = 0;
};

}  // namespace

Result<std::unique_ptr<Listener>> listen(const Address& address, const EndpointOptions& options) {
  TANDEM_ASSIGN(TcpListenSocket listening, listen_tcp(address));
  return std::make_unique<TcpListener>(std::move(listening.socket), std::move(listening.epoll), options);
}

Result<std::unique_ptr<Connecting>> connect(const Address& address, const EndpointOptions& options) {
  TANDEM_ASSIGN(TcpConnector connector, TcpConnector::start(address, options.connect_limit));
  return std::make_unique<TcpConnecting>(std::move(connector), address, options);
}

}  // namespace tandem::tcp
