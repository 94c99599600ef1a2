#include "transport/shm.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <array>
#include <cstring>
#include <vector>

#include "transport/accepting.h"
#include "transport/hello.h"
#include "transport/shm_link.h"
#include "transport/shm_memory.h"
#include "transport/socket.h"
#include "transport/system_error.h"
#include "transport/unix_socket.h"

namespace tandem::shm {
namespace {

constexpr size_t kMaxReasonBytes = 512;

Result<std::string> name_of_peer(int socket, const std::string& address) {
  TANDEM_ASSIGN(const UnixPeer peer, unix_peer(socket));
  std::string name = address + " (pid " + std::to_string(peer.pid) + ")";
  // The path has mode 0600; this also holds where a folder or a passed descriptor would let another user in.
  if (peer.uid != geteuid()) {
    return make_error(ErrorCode::unsupported, name + " is a process of user " + std::to_string(peer.uid) +
                                                  ", this one is of user " + std::to_string(geteuid()) +
                                                  "; shm is for one user, use tcp://");
  }
  return name;
}

Result<std::unique_ptr<Endpoint>> make_endpoint(UniqueFd socket, std::string peer, int side,
                                                const EndpointOptions& options,
                                                std::shared_ptr<RingMemory> memory) {
  TANDEM_ASSIGN(auto link, ShmLink::create(std::move(socket), memory->doorbell(side)));
  return std::make_unique<RingEndpoint>("shm", std::move(peer), side, options, std::move(memory),
                                        std::move(link));
}

class ShmAccepting final : public Accepting {
 public:
  ShmAccepting(UniqueFd socket, std::string peer, std::string address, const EndpointOptions& options)
      : socket_(std::move(socket)),
        peer_(std::move(peer)),
        address_(std::move(address)),
        options_(options),
        deadline_(now() + options.connect_limit) {}

  Result<std::unique_ptr<Endpoint>> advance() override {
    std::array<std::byte, HelloLayout::kBytes> hello;
    std::vector<UniqueFd> unwanted;
    const auto got = receive_packet(socket_.get(), hello, unwanted);
    if (!got && got.error().code == ErrorCode::would_block) {
      if (now() < deadline_) return nullptr;
      return make_error(ErrorCode::deadline_exceeded, "it said no hello within the connect_limit");
    }
    if (!got) return std::unexpected(got.error());
    if (*got == 0) return make_error(ErrorCode::cancelled, "somebody who asked whether this path lives");
    return answer(std::span(hello).first(*got));
  }
  int socket() const override { return socket_.get(); }
  const std::string& peer() const override { return peer_; }

 private:
  Result<std::unique_ptr<Endpoint>> answer(std::span<const std::byte> hello) {
    const auto own_hello = HelloLayout::encode(options_);
    std::vector<std::byte> packet(own_hello.begin(), own_hello.end());
    const auto refuse = [&](const Error& error) -> Result<std::unique_ptr<Endpoint>> {
      const auto text =
          std::as_bytes(std::span(error.message)).first(std::min(error.message.size(), kMaxReasonBytes));
      packet.insert(packet.end(), text.begin(), text.end());
      [[maybe_unused]] const auto sent = send_packet(socket_.get(), packet, {});
      return std::unexpected(error);
    };
    const auto matched = match_hello(options_, address_, hello, peer_, Carrier::messages, Unstated::adopted);
    if (!matched) return refuse(matched.error());
    const RingLayout layout(options_.slots_per_channel, options_.slot_bytes);
    const auto memory = create_shared_memory(layout.total_bytes());
    if (!memory) return refuse(memory.error());
    UniqueFd doorbells[2] = {UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
                             UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK))};
    if (!doorbells[0] || !doorbells[1]) return refuse(no_descriptor("eventfd").error());
    const std::array<int, 3> fds = {memory->get(), doorbells[0].get(), doorbells[1].get()};
    const auto mapped = map_shared_memory(*memory, layout, std::move(doorbells[0]), std::move(doorbells[1]));
    if (!mapped) return refuse(mapped.error());
    TANDEM_TRY(send_packet(socket_.get(), packet, fds));
    return make_endpoint(std::move(socket_), peer_, 1, options_, *mapped);
  }

  UniqueFd socket_;
  const std::string peer_;
  const std::string address_;
  const EndpointOptions options_;
  const Instant deadline_;
};

class ShmListener final : public AcceptingListener {
 public:
  ShmListener(UnixListenSocket socket, Acceptor acceptor, const EndpointOptions& options)
      : AcceptingListener(std::move(acceptor), options), socket_(std::move(socket)) {}

 private:
  Result<std::unique_ptr<Accepting>> begin(Accepted taken) override {
    TANDEM_ASSIGN(std::string peer, name_of_peer(taken.socket.get(), address()));
    return std::make_unique<ShmAccepting>(std::move(taken.socket), std::move(peer), address(), options());
  }

  UnixListenSocket socket_;
};

}  // namespace

Result<std::unique_ptr<Listener>> listen(const Address& address, const EndpointOptions& options) {
  TANDEM_ASSIGN(UnixListenSocket socket, UnixListenSocket::bind(address.rest));
  TANDEM_ASSIGN(Acceptor acceptor, Acceptor::create(socket.fd(), "shm://" + address.rest));
  return std::make_unique<ShmListener>(std::move(socket), std::move(acceptor), options);
}

namespace {

class ShmConnecting final : public Connecting {
 public:
  ShmConnecting(std::string path, const EndpointOptions& options)
      : path_(std::move(path)),
        whole_("shm://" + path_),
        options_(options),
        deadline_(now() + options.connect_limit) {}

  std::vector<pollfd> waits_for() const override {
    if (!socket_) return {};
    return {{socket_.get(), POLLIN, 0}};
  }

  Result<std::unique_ptr<Endpoint>> advance() override {
    if (!socket_) {
      auto socket = connect_unix(path_);
      if (!socket && socket.error().code == ErrorCode::would_block && now() < deadline_) return nullptr;
      if (!socket && socket.error().code == ErrorCode::would_block)
        return make_error(ErrorCode::deadline_exceeded, socket.error().message);
      if (!socket) return std::unexpected(socket.error());
      socket_ = std::move(*socket);
      TANDEM_ASSIGN(peer_, name_of_peer(socket_.get(), whole_));
      if (const auto sent = send_packet(socket_.get(), HelloLayout::encode(options_), {}); !sent)
        return failed(ErrorCode::unavailable, sent.error().message);
    }
    std::array<std::byte, HelloLayout::kBytes + kMaxReasonBytes> packet;
    std::vector<UniqueFd> fds;
    const auto got = receive_packet(socket_.get(), packet, fds);
    if (!got && got.error().code == ErrorCode::would_block) {
      if (now() < deadline_) return nullptr;
      return failed(ErrorCode::deadline_exceeded,
                    "no answer within the connect_limit; is the peer stopped or overloaded?");
    }
    if (!got) return failed(ErrorCode::unavailable, got.error().message);
    return take_answer(std::span(packet).first(*got), fds);
  }

 private:
  std::string local() const { return whole_ + " (pid " + std::to_string(getpid()) + ")"; }

  std::unexpected<Error> failed(ErrorCode code, const std::string& why) const {
    return make_error(code, "handshake of " + local() + " with " + peer_ + ": " + why);
  }

  Result<std::unique_ptr<Endpoint>> take_answer(std::span<const std::byte> packet,
                                                std::vector<UniqueFd>& fds) {
    if (packet.empty())
      return failed(ErrorCode::unavailable, "the other side closed the connection; its log says why");
    TANDEM_ASSIGN(options_, adopt_hello(options_, packet, whole_));
    TANDEM_TRY(match_hello(options_, local(), packet, whole_));
    if (packet.size() > HelloLayout::kBytes) {
      const auto reason = packet.subspan(HelloLayout::kBytes);
      return failed(ErrorCode::resource_exhausted,
                    "refused: " + std::string(reinterpret_cast<const char*>(reason.data()), reason.size()));
    }
    if (fds.size() != 3) {
      return failed(ErrorCode::data_loss, std::to_string(fds.size()) + " descriptors came, expected 3");
    }
    for (int i : {1, 2}) fcntl(fds[i].get(), F_SETFL, fcntl(fds[i].get(), F_GETFL) | O_NONBLOCK);
    const RingLayout layout(options_.slots_per_channel, options_.slot_bytes);
    auto memory = map_shared_memory(fds[0], layout, std::move(fds[1]), std::move(fds[2]));
    if (!memory) return failed(memory.error().code, memory.error().message);
    return make_endpoint(std::move(socket_), std::move(peer_), 0, options_, std::move(*memory));
  }

  const std::string path_;
  const std::string whole_;
  EndpointOptions options_;
  const Instant deadline_;
  UniqueFd socket_;  // has said hello
  std::string peer_;
};

}  // namespace

Result<std::unique_ptr<Connecting>> connect(const Address& address, const EndpointOptions& options) {
  return std::make_unique<ShmConnecting>(address.rest, options);
}

}  // namespace tandem::shm
