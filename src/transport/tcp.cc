#include "transport/tcp.h"

#include <poll.h>

#include <optional>
#include <utility>
#include <vector>

#include "transport/accepting.h"
#include "transport/socket.h"
#include "transport/tcp_endpoint.h"
#include "transport/tcp_handshake.h"
#include "transport/tcp_socket.h"

namespace tandem::tcp {
namespace {

class TcpAccepting final : public Accepting {
 public:
  TcpAccepting(Accepted taken, std::string address, const EndpointOptions& options)
      : handshake_(std::move(taken.socket), ConnectionSide::listening, std::move(address),
                   tcp_name(taken.peer), options, now() + options.connect_limit) {}

  Result<std::unique_ptr<Endpoint>> advance() override {
    TANDEM_ASSIGN(const bool done, handshake_.advance());
    if (!done) return nullptr;
    return TcpEndpoint::create(handshake_.take_stream(), peer(), handshake_.options());
  }
  int socket() const override { return handshake_.socket(); }
  const std::string& peer() const override { return handshake_.peer(); }

 private:
  TcpHandshake handshake_;
};

class TcpListener final : public AcceptingListener {
 public:
  TcpListener(UniqueFd socket, Acceptor acceptor, const EndpointOptions& options)
      : AcceptingListener(std::move(acceptor), options), socket_(std::move(socket)) {}

 private:
  Result<std::unique_ptr<Accepting>> begin(Accepted taken) override {
    set_no_delay(taken.socket.get());
    return std::make_unique<TcpAccepting>(std::move(taken), address(), options());
  }

  UniqueFd socket_;
};

class TcpConnecting final : public Connecting {
 public:
  TcpConnecting(TcpConnector connector, const Address& address, const EndpointOptions& options)
      : connector_(std::move(connector)), whole_("tcp://" + address.rest), options_(options) {}

  std::vector<pollfd> waits_for() const override {
    if (handshake_) return {{handshake_->socket(), POLLIN, 0}};
    return {{connector_.socket(), POLLOUT, 0}};
  }

  Result<std::unique_ptr<Endpoint>> advance() override {
    if (!handshake_) {
      TANDEM_ASSIGN(UniqueFd socket, connector_.advance());
      if (!socket) return nullptr;
      std::string local = tcp_name_of_local_end(socket.get());
      handshake_.emplace(std::move(socket), ConnectionSide::connecting, std::move(local), whole_, options_,
                         connector_.deadline());
    }
    TANDEM_ASSIGN(const bool done, handshake_->advance());
    if (!done) return nullptr;
    return TcpEndpoint::create(handshake_->take_stream(), whole_, handshake_->options());
  }

 private:
  TcpConnector connector_;
  const std::string whole_;
  const EndpointOptions options_;
  std::optional<TcpHandshake> handshake_;  // once there is a connection
};

}  // namespace

Result<std::unique_ptr<Listener>> listen(const Address& address, const EndpointOptions& options) {
  TANDEM_ASSIGN(UniqueFd socket, listen_tcp(address));
  TANDEM_ASSIGN(Acceptor acceptor, Acceptor::create(socket.get(), tcp_name_of_local_end(socket.get())));
  return std::make_unique<TcpListener>(std::move(socket), std::move(acceptor), options);
}

Result<std::unique_ptr<Connecting>> connect(const Address& address, const EndpointOptions& options) {
  TANDEM_ASSIGN(TcpConnector connector, TcpConnector::start(address, options.connect_limit));
  return std::make_unique<TcpConnecting>(std::move(connector), address, options);
}

}  // namespace tandem::tcp
