#include "transport/ucx.h"

#include <poll.h>
#include <sys/epoll.h>

#include <algorithm>
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

}  // namespace

Result<std::unique_ptr<Listener>> listen(const Address& address, const EndpointOptions& options) {
  TANDEM_TRY(UcxLibrary::get());  // refuse now what no peer could ever use
  TANDEM_ASSIGN(TcpListenSocket listening, listen_tcp(address));
  return std::make_unique<UcxListener>(std::move(listening), options);
}

Result<std::unique_ptr<Endpoint>> connect(const Address& address, const EndpointOptions& options) {
  TANDEM_TRY(UcxLibrary::get());
  const std::string whole = "ucx://" + address.rest;
  TANDEM_ASSIGN(UniqueFd socket, connect_tcp(address, now() + options.connect_limit, options.connect_limit));
  const std::string local = tcp_name_of_local_end(socket.get(), "ucx");
  UcxHandshake handshake(std::move(socket), local, whole, options);
  for (;;) {
    const auto step = handshake.advance();
    if (!step) {
      return make_error(step.error().code,
                        step.error().code == ErrorCode::invalid_argument
                            ? step.error().message
                            : "handshake of " + local + " with " + whole + ": " + step.error().message);
    }
    if (*step == UcxHandshake::Step::done) return std::move(handshake).finish();
    pollfd wanted[] = {{handshake.socket(), POLLIN, 0}, {handshake.ucx_fd(), POLLIN, 0}};
    // A heartbeat of an impatient peer keeps the socket readable: looking every millisecond is enough then.
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(handshake.deadline() - now()).count();
    ::poll(wanted, handshake.ucx_fd() >= 0 ? 2 : 1, static_cast<int>(std::clamp<int64_t>(left, 1, 100)));
  }
}

}  // namespace tandem::ucx
