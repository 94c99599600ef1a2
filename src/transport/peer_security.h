// PeerSecurity: how the two sides of a tcp or ucx connection know each other, and what they need for it.
// Immutable once made, shared by all connections of a process; any thread. inproc and shm have no use for it:
// one process, or one user of one kernel, which says who the peer is.
//
//   key  both sides have the same secret and prove it (peer_proof.h). Nothing is encrypted, and who can
//   change
//        packets on the way can still take a connection over once it stands.
//   tls  the whole connection is inside TLS 1.3, and each side's certificate is signed by the other's CA; tcp
//        only (tls_context.h).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "transport/tls_context.h"

namespace tandem {

// As the hello states it.
enum class SecurityMode : uint32_t { none = 0, key = 1, tls = 2 };

class PeerSecurity {
 public:
  static constexpr size_t kDigestBytes = 32;
  using Digest = std::array<std::byte, kDigestBytes>;

  // The key is the file's bytes without a newline at their end. Refused by name: a file that others than its
  // owner may read or write, fewer than 32 bytes, more than 4096.
  static Result<std::shared_ptr<const PeerSecurity>> with_key_file(const std::string& path);
  // The same from memory. `name`: what errors call it.
  static Result<std::shared_ptr<const PeerSecurity>> with_key(std::span<const std::byte> key,
                                                              const std::string& name);
  static Result<std::shared_ptr<const PeerSecurity>> with_tls(const TlsFiles& files);
  ~PeerSecurity();  // overwrites the key
  PeerSecurity(const PeerSecurity&) = delete;
  PeerSecurity& operator=(const PeerSecurity&) = delete;

  SecurityMode mode() const { return mode_; }
  // HMAC-SHA256 of `text` under the key; mode key only.
  Result<Digest> authenticate(std::span<const std::byte> text) const;
  // Mode tls only; lives as long as this.
  const PeerTlsContext* tls() const { return tls_.get(); }

 private:
  explicit PeerSecurity(SecurityMode mode) : mode_(mode) {}

  const SecurityMode mode_;
  std::vector<std::byte> key_;
  std::unique_ptr<PeerTlsContext> tls_;
};

// "none", "a key", "TLS", or the number of one that this release does not know: for messages.
std::string security_name(uint32_t mode);

// Unpredictable bytes; internal: the system has none.
Result<void> fill_with_randomness(std::span<std::byte> bytes);

// Whether two digests are equal, in a time that says nothing about where they differ.
bool equal_in_constant_time(std::span<const std::byte> a, std::span<const std::byte> b);

// The bytes of a file that holds a secret. invalid_argument, naming it and what would do: unreadable, or its
// mode gives others than its owner anything (chmod 600); out_of_range above `limit_bytes`.
Result<std::vector<std::byte>> read_secret_file(const std::string& path, size_t limit_bytes);

}  // namespace tandem
