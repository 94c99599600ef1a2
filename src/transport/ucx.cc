#include "transport/ucx.h"

#include <poll.h>

#include <optional>
#include <utility>
#include <vector>

#include "transport/refusal_log.h"
#include "transport/socket.h"
#include "transport/tcp_acceptor.h"
#include "transport/tcp_socket.h"
#include "transport/ucx_handshake.h"

namespace tandem::ucx {
namespace {

class UcxListener final : public Listener {
 public:
  UcxListener(TcpAcceptor acceptor, const EndpointOptions& options)
      : acceptor_(std::move(acceptor)), options_(options) {}

  int fd() const override { return acceptor_.fd(); }
  const std::string& address() const override { return acceptor_.address(); }
  std::optional<Error> take_mismatch() override { return std::exchange(mismatch_, std::nullopt); }

  Result<std::unique_ptr<Endpoint>> accept() override {
    TANDEM_TRY(take_connections());
    for (size_t i = 0; i < handshakes_.size();) {
      const int before = handshakes_[i]->ucx_fd();
      const auto step = handshakes_[i]->advance();
      if (step && *step == UcxHandshake::Step::waits) {
        if (before < 0 && handshakes_[i]->ucx_fd() >= 0) acceptor_.watch(handshakes_[i]->ucx_fd());
        ++i;
        continue;
      }
      const std::unique_ptr<UcxHandshake> handshake = take(i);
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
      TANDEM_ASSIGN(Accepted taken, acceptor_.next());
      if (taken.none_waits) return {};
      if (!taken.socket) continue;
      set_no_delay(taken.socket.get());
      if (handshakes_.size() == kMaxHandshakes) {
        const auto dropped = take(whom_to_drop(hosts_));
        refusals_.add("dropped " + dropped->peer() + ": too many connections that say nothing");
      }
      acceptor_.watch(taken.socket.get());
      handshakes_.push_back(std::make_unique<UcxHandshake>(std::move(taken.socket), ConnectionSide::listening,
                                                           address(), tcp_name(taken.peer, "ucx"), options_));
      hosts_.push_back(host_number(taken.peer));
    }
    return {};
  }

  void refuse(const std::string& peer, const Error& error) {
    if (error.code == ErrorCode::invalid_argument && !options_.security) mismatch_ = error;
    refusals_.add("refused " + peer + " at " + address() + ": " + error.message);
  }

  std::unique_ptr<UcxHandshake> take(size_t index) {
    const auto at = static_cast<ptrdiff_t>(index);
    acceptor_.forget(handshakes_[index]->socket());
    acceptor_.forget(handshakes_[index]->ucx_fd());
    std::unique_ptr<UcxHandshake> taken = std::move(handshakes_[index]);
    handshakes_.erase(handshakes_.begin() + at);
    hosts_.erase(hosts_.begin() + at);
    return taken;
  }

  TcpAcceptor acceptor_;
  EndpointOptions options_;
  std::vector<std::unique_ptr<UcxHandshake>> handshakes_;  // the oldest first
  std::vector<uint64_t> hosts_;                            // of each of them
  RefusalLog refusals_;
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
      handshake_.emplace(std::move(socket), ConnectionSide::connecting, local_, whole_, options_);
    }
    const auto step = handshake_->advance();
    if (!step) {
      return make_error(step.error().code,
                        step.error().code == ErrorCode::invalid_argument && !handshake_->proving()
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

// UCX carries the messages, and encrypts nothing.
Result<void> check_security(const Address& address, const EndpointOptions& options) {
  if (!options.security || options.security->mode() != SecurityMode::tls) return {};
  return make_error(ErrorCode::unsupported,
                    "address ucx://" + address.rest +
                        ": messages over ucx cannot be encrypted; use tcp:// with TLS, or --peer-key-file");
}

}  // namespace

Result<std::unique_ptr<Listener>> listen(const Address& address, const EndpointOptions& options) {
  TANDEM_TRY(check_security(address, options));
  TANDEM_TRY(UcxLibrary::get());  // refuse now what no peer could ever use
  TANDEM_ASSIGN(TcpAcceptor acceptor, TcpAcceptor::create(address));
  return std::make_unique<UcxListener>(std::move(acceptor), options);
}

Result<std::unique_ptr<Connecting>> connect(const Address& address, const EndpointOptions& options) {
  TANDEM_TRY(check_security(address, options));
  TANDEM_TRY(UcxLibrary::get());
  TANDEM_ASSIGN(TcpConnector connector, TcpConnector::start(address, options.connect_limit));
  return std::make_unique<UcxConnecting>(std::move(connector), address, options);
}

}  // namespace tandem::ucx
