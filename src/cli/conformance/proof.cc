#include "cli/conformance/proof.h"

#include <string_view>

namespace tandem::conformance {

Result<Bytes> Proof::value(const PeerSecurity& key, uint8_t side) const {
  constexpr std::string_view kPurpose = "tandem peer 1";
  const auto purpose = std::as_bytes(std::span(kPurpose));
  Bytes text;
  text.reserve(purpose.size() + 1 + 2 * kWordBytes + 2 * connecting_hello.size());
  text.insert(text.end(), purpose.begin(), purpose.end());
  text.push_back(static_cast<std::byte>(side));
  for (const Bytes* part : {&connecting_nonce, &listening_nonce, &connecting_hello, &listening_hello})
    text.insert(text.end(), part->begin(), part->end());
  TANDEM_ASSIGN(const PeerSecurity::Digest digest, key.authenticate(text));
  return Bytes(digest.begin(), digest.end());
}

Result<Bytes> fresh_nonce() {
  Bytes nonce(kWordBytes);
  TANDEM_TRY(fill_with_randomness(nonce));
  return nonce;
}

}  // namespace tandem::conformance
