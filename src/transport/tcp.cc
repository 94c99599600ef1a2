#include "transport/tcp.h"

#include <poll.h>

#include <optional>
#include <utility>
#include <vector>

#include "transport/refusal_log.h"
#include "transport/socket.h"
#include "transport/tcp_acceptor.h"
#include "transport/tcp_endpoint.h"
#include "transport/tcp_handshake.h"
#include "transport/tcp_socket.h"

namespace tandem::tcp {
namespace {

class TcpListener final : public Listener {
 public:
  TcpListener(TcpAcceptor acceptor, const EndpointOptions& options)
      : acceptor_(std::move(acceptor)), options_(options) {}

  int fd() const override { return acceptor_.fd(); }
  const std::string& address() const override { return acceptor_.address(); }
  std::optional<Error> take_mismatch() override { return std::exchange(mismatch_, std::nullopt); }

  Result<std::unique_ptr<Endpoint>> accept() override {
    TANDEM_TRY(take_connections());
    for (size_t i = 0; i < handshakes_.size();) {
      const auto step = handshakes_[i].advance();
      if (step && !*step) {
        ++i;
        continue;
      }
      TcpHandshake done = take(i);
      auto endpoint = step ? TcpEndpoint::create(done.take_stream(), done.peer(), done.options())
                           : Result<std::unique_ptr<Endpoint>>(std::unexpected(step.error()));
      if (endpoint) return endpoint;
      if (!step && step.error().code == ErrorCode::invalid_argument && !options_.security)
        mismatch_ = step.error();
      refusals_.add("refused " + done.peer() + " at " + address() + ": " + endpoint.error().message);
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
        const TcpHandshake dropped = take(whom_to_drop(hosts_));
        refusals_.add("dropped " + dropped.peer() + ": too many connections that say nothing");
      }
      acceptor_.watch(taken.socket.get());
      handshakes_.emplace_back(std::move(taken.socket), ConnectionSide::listening, address(),
                               tcp_name(taken.peer), options_, now() + options_.connect_limit);
      hosts_.push_back(host_number(taken.peer));
    }
    return {};
  }

  TcpHandshake take(size_t index) {
    const auto at = static_cast<ptrdiff_t>(index);
    acceptor_.forget(handshakes_[index].socket());
    TcpHandshake taken = std::move(handshakes_[index]);
    handshakes_.erase(handshakes_.begin() + at);
    hosts_.erase(hosts_.begin() + at);
    return taken;
  }

  TcpAcceptor acceptor_;
  EndpointOptions options_;
  std::vector<TcpHandshake> handshakes_;  // the oldest first
  std::vector<uint64_t> hosts_;           // of each of them
  RefusalLog refusals_;
  std::optional<Error> mismatch_;
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
  TANDEM_ASSIGN(TcpAcceptor acceptor, TcpAcceptor::create(address));
  return std::make_unique<TcpListener>(std::move(acceptor), options);
}

Result<std::unique_ptr<Connecting>> connect(const Address& address, const EndpointOptions& options) {
  TANDEM_ASSIGN(TcpConnector connector, TcpConnector::start(address, options.connect_limit));
  return std::make_unique<TcpConnecting>(std::move(connector), address, options);
}

}  // namespace tandem::tcp
