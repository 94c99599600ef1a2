// TcpHandshake: one side of the start of a tcp connection, as a machine that takes what the socket has and
// never blocks: TLS where the options have it, the hellos, and the proofs of the key where the options have
// one. Nothing else leaves before it is done, and it allocates nothing for what the peer says. One thread.
#pragma once

#include <array>
#include <memory>
#include <string>

#include "base/clock.h"
#include "transport/endpoint.h"
#include "transport/peer_proof.h"
#include "transport/tcp_greeting.h"
#include "transport/tcp_stream.h"

namespace tandem {

class TcpHandshake {
 public:
  // `local` and `peer`: the names that messages use. Whoever listens answers a hello before it compares, so
  // that the other side can name a difference as well.
  TcpHandshake(UniqueFd socket, ConnectionSide side, std::string local, std::string peer,
               const EndpointOptions& options, Instant deadline)
      : stream_(std::move(socket)),
        side_(side),
        local_(std::move(local)),
        peer_(std::move(peer)),
        options_(options),
        deadline_(deadline),
        greeting_(make_greeting(options)) {}

  // Goes as far as it can: true when it is done. An error ends it. On the connecting side its message is
  // complete; on the listening side it says what the peer did, for a line that names the peer.
  Result<bool> advance();
  // After done.
  TcpStream take_stream() { return std::move(stream_); }
  // After done: those given, or with `adopt` the peer's.
  const EndpointOptions& options() const { return options_; }

  int socket() const { return stream_.socket(); }
  const std::string& peer() const { return peer_; }

 private:
  enum class Phase : uint8_t { tls, hello, proof, done };
  bool connects() const { return side_ == ConnectionSide::connecting; }
  std::unexpected<Error> failed(ErrorCode code, const std::string& why) const;
  Result<bool> receive(size_t bytes);
  Result<void> send(std::span<const std::byte> bytes);
  Result<void> check_head() const;
  Result<bool> start_stream();
  Result<void> take_hello();
  Result<void> take_proof();

  TcpStream stream_;
  ConnectionSide side_;
  std::string local_;
  std::string peer_;
  EndpointOptions options_;
  Instant deadline_;
  Phase phase_ = Phase::tls;
  bool greeted_ = false;
  std::array<std::byte, kGreetingBytes> greeting_;    // ours
  std::array<std::byte, kGreetingBytes> received_{};  // the frame that is being received
  size_t size_ = 0;
  std::unique_ptr<PeerProof> proof_;  // once the hellos were found to agree
};

}  // namespace tandem
