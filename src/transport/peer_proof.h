// PeerProof: the two frames behind the hellos with which each side shows that it has the key, without showing
// the key (docs/protocol.md, section 13). Both send 32 fresh random bytes; whoever connected proves
// first, and the listener answers a good proof with its own. A proof covers both nonces, both hellos and the
// side that makes it: none of another connection, of the other side or of other options is one. A machine
// without a socket; one thread.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>

#include "transport/hello.h"
#include "transport/peer_security.h"
#include "transport/tcp_frame.h"

namespace tandem {

// Of a connection: who called, and who was called. The values are on the wire.
enum class ConnectionSide : uint8_t { connecting = 1, listening = 2 };

class PeerProof {
 public:
  static constexpr size_t kValueBytes = 32;  // of a nonce and of a proof
  static constexpr size_t kFrameBytes = TcpFrameLayout::kHeaderBytes + kValueBytes;
  using Frame = std::array<std::byte, kFrameBytes>;
  using HelloBytes = std::span<const std::byte, HelloLayout::kBytes>;

  // The hellos as they travelled.
  PeerProof(std::shared_ptr<const PeerSecurity> security, ConnectionSide side, HelloBytes own_hello,
            HelloBytes peer_hello);

  // What leaves first: our nonce.
  Result<Frame> nonce();
  // Whether the head of the peer's next frame is what must come now; data_loss, or invalid_argument where the
  // peer says that our proof is wrong.
  Result<void> check_head(std::span<const std::byte, TcpFrameLayout::kHeaderBytes> head) const;
  // Takes that frame once it is whole. `send`: an answer is in `answer`. invalid_argument: the proof is
  // wrong.
  struct Step {
    bool send = false;
    Frame answer{};
  };
  Result<Step> take(std::span<const std::byte, kFrameBytes> frame);
  // The peer has the key, and so have we shown (the last answer is sent first).
  bool done() const { return expects_ == Expects::nothing; }

 private:
  enum class Expects : uint8_t { nonce, proof, nothing };
  Result<Frame> proof_of(ConnectionSide side) const;

  std::shared_ptr<const PeerSecurity> security_;
  ConnectionSide side_;
  Expects expects_ = Expects::nonce;
  std::array<std::byte, kValueBytes> own_nonce_{}, peer_nonce_{};
  std::array<std::byte, HelloLayout::kBytes> own_hello_, peer_hello_;
};

}  // namespace tandem
