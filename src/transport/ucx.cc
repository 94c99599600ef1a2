#include "transport/ucx.h"

#include <poll.h>

#include <optional>
#include <utility>
#include <vector>

#include "transport/accepting.h"
#include "transport/socket.h"
#include "transport/tcp_socket.h"
#include "transport/ucx_handshake.h"

namespace tandem::ucx {
namespace {

class UcxAccepting final : public Accepting {
 public:
  UcxAccepting(Accepted taken, std::string address, const EndpointOptions& options)
      : peer_(tcp_name(taken.peer, "ucx")),
        handshake_(std::move(taken.socket), ConnectionSide::listening, std::move(address), peer_, options) {}

  Result<std::unique_ptr<Endpoint>> advance() override {
    TANDEM_ASSIGN(const UcxHandshake::Step step, handshake_.advance());
    if (step == UcxHandshake::Step::waits) return nullptr;
    return std::move(handshake_).finish();
  }
  int socket() const override { return handshake_.socket(); }
  int second_descriptor() const override { return handshake_.wiring() ? handshake_.ucx_fd() : -1; }
  const std::string& peer() const override { return peer_; }

 private:
  const std::string peer_;
  UcxHandshake handshake_;
};

class UcxListener final : public AcceptingListener {
 public:
  UcxListener(UniqueFd socket, Acceptor acceptor, const EndpointOptions& options)
      : AcceptingListener(std::move(acceptor), options), socket_(std::move(socket)) {}

 private:
  Result<std::unique_ptr<Accepting>> begin(Accepted taken) override {
    set_no_delay(taken.socket.get());
    return std::make_unique<UcxAccepting>(std::move(taken), address(), options());
  }

  UniqueFd socket_;
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
  TANDEM_ASSIGN(UniqueFd socket, listen_tcp(address));
  TANDEM_ASSIGN(Acceptor acceptor,
                Acceptor::create(socket.get(), tcp_name_of_local_end(socket.get(), "ucx")));
  return std::make_unique<UcxListener>(std::move(socket), std::move(acceptor), options);
}

Result<std::unique_ptr<Connecting>> connect(const Address& address, const EndpointOptions& options) {
  TANDEM_TRY(check_security(address, options));
  TANDEM_TRY(UcxLibrary::get());
  TANDEM_ASSIGN(TcpConnector connector, TcpConnector::start(address, options.connect_limit));
  return std::make_unique<UcxConnecting>(std::move(connector), address, options);
}

}  // namespace tandem::ucx
