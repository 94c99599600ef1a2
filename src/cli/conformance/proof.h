// Proof: what the two sides of a connection with a key have said until one of them proves that it has it, and
// the proofs that follow from it (docs/protocol.md, section 13). Written beside that page and
// not with transport/peer_proof.h, whose fault would otherwise be the test's fault too. Values; any thread.
#pragma once

#include "cli/conformance/raw_frame.h"
#include "transport/peer_security.h"

namespace tandem::conformance {

inline constexpr uint8_t kConnecting = 1, kListening = 2;  // sides, as proofs have them
inline constexpr size_t kWordBytes = 32;                   // of a nonce and of a proof

struct Proof {
  Bytes connecting_hello, listening_hello;  // [64], as they travelled
  Bytes connecting_nonce, listening_nonce;  // [32]

  // [32], of `side`. `key` has mode key.
  Result<Bytes> value(const PeerSecurity& key, uint8_t side) const;
};

Result<Bytes> fresh_nonce();

}  // namespace tandem::conformance
