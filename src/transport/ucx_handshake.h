// UcxHandshake: one side of the handshake of a ucx connection, as a machine that takes what the socket has
// and never blocks; ucx.h says what is exchanged. The connecting side waits between steps, the listener looks
// at other connections. One thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "transport/endpoint.h"
#include "transport/peer_proof.h"
#include "transport/tcp_greeting.h"
#include "transport/ucx_connection.h"
#include "transport/ucx_path.h"

namespace tandem {

class UcxHandshake {
 public:
  // `local` and `peer`: the names that messages use.
  UcxHandshake(UniqueFd socket, ConnectionSide side, std::string local, std::string peer,
               const EndpointOptions& options)
      : socket_(std::move(socket)),
        side_(side),
        local_(std::move(local)),
        peer_(std::move(peer)),
        options_(options),
        deadline_(now() + options.connect_limit) {}

  enum class Step { waits, done };
  // Goes as far as it can. An error ends the handshake.
  Result<Step> advance();
  // After done.
  Result<std::unique_ptr<Endpoint>> finish() &&;

  int socket() const { return socket_.get(); }
  // UCX's descriptor, to be waited for beside the socket; -1 before there is one. Readable again after
  // advance.
  int ucx_fd() const { return connection_ ? connection_->ucx_fd() : -1; }
  bool proving() const { return phase_ == Phase::proof; }
  // Only UCX's part is left.
  bool wiring() const { return phase_ == Phase::wiring; }

 private:
  enum class Phase { greeting, proof, address, wiring };
  Result<bool> receive(size_t bytes);
  Result<void> send(std::span<const std::byte> bytes);
  Result<void> take_greeting();
  Result<bool> take_proof();
  Result<void> make_connection();
  Result<bool> take_address();
  Result<bool> wire();

  UniqueFd socket_;
  ConnectionSide side_;
  std::string local_;
  std::string peer_;
  EndpointOptions options_;
  Instant deadline_;
  Phase phase_ = Phase::greeting;
  bool greeted_ = false;
  std::array<std::byte, kGreetingBytes> greeting_{};  // ours, as it left
  HostToken peer_host_{};
  std::unique_ptr<PeerProof> proof_;  // once the hellos were found to agree
  std::vector<std::byte> received_;
  UcxPath path_;
  std::shared_ptr<UcxConnection> connection_;
};

}  // namespace tandem
