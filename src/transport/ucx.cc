#include "transport/ucx.h"

#include <poll.h>
#include <sys/epoll.h>

#include <optional>
#include <utility>
#include <vector>

#include "base/log.h"
#include "transport/socket.h"
#include "transport/tcp_socket.h"
#include "transport/ucx_handshake.h"

namespace tandem::ucx {
namespace {

class UcxListener final : public Listener {
 public:
  UcxListener(TcpListenSocket listening, const EndpointOptions& options)
      : listening_(std::move(listening)),
        options_(options),
        address_(tcp_name_of_local_end(listening_.socket.get(), "ucx")) {}

  int fd() const override { return listening_.epoll.get(); }
  const std::string& address() const override { return address_; }
  std::optional<Error> take_mismatch() override { return std::exchange(mismatch_, std::nullopt); }

  Result<std::unique_ptr<Endpoint>> accept() override {
    TANDEM_TRY(take_connections());
    for (size_t i = 0; i < handshakes_.size();) {
      const int before = handshakes_[i]->ucx_fd();
      const auto step = handshakes_[i]->advance();
      if (step && *step == UcxHandshake::Step::waits) {
        if (before < 0 && handshakes_[i]->ucx_fd() >= 0) watch(handshakes_[i]->ucx_fd());
        ++i;
        continue;
      }
      const std::unique_ptr<UcxHandshake> handshake = std::move(handshakes_[i]);
      handshakes_.erase(handshakes_.begin() + static_cast<ptrdiff_t>(i));
      forget(*handshake);
      if (!step) {
        refuse(handshake->peer(), step.error());
        continue;
      }
      const std::string peer = handshake->peer();
      auto endpoint = std::move(*handshake).finish();
      if (endpoint) return endpoint;
      refuse(peer, endpoint.error());
    }
    return nullptr;
  }

 private:
  Result<void> take_connections() {
    for (int i = 0; i < kAcceptsPerCall; ++i) {
      TANDEM_ASSIGN(Accepted taken, accept_connection(listening_.socket.get(), address_));
      if (taken.none_waits) return {};
      if (!taken.socket) continue;
      set_no_delay(taken.socket.get());
      if (handshakes_.size() == kMaxHandshakes) {
        log_warning("dropped " + handshakes_.front()->peer() + ": too many connections that say nothing");
        forget(*handshakes_.front());
        handshakes_.erase(handshakes_.begin());
      }
      watch(taken.socket.get());
      handshakes_.push_back(std::make_unique<UcxHandshake>(std::move(taken.socket), address_,
                                                           tcp_name(taken.peer, "ucx"), options_));
    }
    return {};
  }

  void refuse(const std::string& peer, const Error& error) {
    if (error.code == ErrorCode::invalid_argument) mismatch_ = error;
    log_warning("refused " + peer + " at " + address_ + ": " + error.message);
  }

  void watch(int fd) {
    epoll_event event{};
    event.events = EPOLLIN;
    epoll_ctl(listening_.epoll.get(), EPOLL_CTL_ADD, fd, &event);
  }
  void forget(const UcxHandshake& handshake) {
    for (const int fd : {handshake.socket(), handshake.ucx_fd()}) {
      if (fd >= 0) epoll_ctl(listening_.epoll.get(), EPOLL_CTL_DEL, fd, nullptr);
    }
  }

  TcpListenSocket listening_;
  EndpointOptions options_;
  std::string address_;
  std::vector<std::unique_ptr<UcxHandshake>> handshakes_;
  std::optional<Error> mismatch_;
};

class UcxConnecting final : public Connecting {
 public:
  UcxConnecting(TcpConnector connector, const Address& address, const EndpointOptions& options)
      : connector_(std::move(connector)), whole_("ucx://" + address.rest), options_(options) {}

  std::vector<pollfd> waits_for() const override {
    if (!handshake_) return {{connector_.socket(), POLLOUT, 0}};
    if (handshake_->ucx_fd() < 0) return {{handshake_->socket(), POLLIN, 0}};
    // Heartbeats of an impatient peer stay in the socket until there is an endpoint: only its end wakes.
    const short socket_events = handshake_->wiring() ? POLLRDHUP : POLLIN;
    return {{handshake_->socket(), socket_events, 0}, {handshake_->ucx_fd(), POLLIN, 0}};
  }

  Result<std::unique_ptr<Endpoint>> advance() override {
    if (!handshake_) {
      TANDEM_ASSIGN(UniqueFd socket, connector_.advance());
      if (!socket) return nullptr;
      local_ = tcp_name_of_local_end(socket.get(), "ucx");
      handshake_.emplace(std::move(socket), local_, whole_, options_);
    }
    const auto step = handshake_->advance();
    if (!step) {
      return make_error(step.error().code,
                        step.error().code == ErrorCode::invalid_argument
                            ? step.error().message
                            : "handshake of " + local_ + " with " + whole_ + ": " + step.error().message);
    }
    if (*step == UcxHandshake::Step::waits) return nullptr;
    return std::move(*handshake_).finish();
  }

 private:
  TcpConnector connector_;
  const std::string whole_;
  const EndpointOptions options_;
  std::string local_;
  std::optional<UcxHandshake> handshake_;
};

}  // namespace

Result<std::unique_ptr<Listener>> listen(const Address& address, const EndpointOptions& options) {
  TANDEM_TRY(UcxLibrary::get());  // refuse now what no peer could ever use
  TANDEM_ASSIGN(TcpListenSocket listening, listen_tcp(address));
  return std::make_unique<UcxListener>(std::move(listening), options);
}

Result<std::unique_ptr<Connecting>> connect(const Address& address, const EndpointOptions& options) {
  TANDEM_TRY(UcxLibrary::get());
  TANDEM_ASSIGN(TcpConnector connector, TcpConnector::start(address, options.connect_limit));
  return std::make_unique<UcxConnecting>(std::move(connector), address, options);
}

}  // namespace tandem::ucx
