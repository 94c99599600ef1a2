// PeerTlsContext: what this process shows of itself in TLS, and whom it believes: a certificate with its key,
// and the CA that must have signed the peer's. Only TLS 1.3, certificates on both sides, no resumption: every
// connection is checked anew. Names in certificates are not compared: whom the CA signs is a peer, so it is a
// CA of the deployment alone. Immutable, any thread.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"

struct ssl_ctx_st;

namespace tandem {

// PEM files.
struct TlsFiles {
  std::string certificate;  // with what is between it and the CA behind it
  std::string key;          // its private key, without a password, for its owner alone
  std::string ca;
};

class PeerTlsContext {
 public:
  // invalid_argument naming the file, what is wrong and what would do.
  static Result<std::unique_ptr<PeerTlsContext>> load(const TlsFiles& files);
  ~PeerTlsContext();
  PeerTlsContext(const PeerTlsContext&) = delete;
  PeerTlsContext& operator=(const PeerTlsContext&) = delete;

  ssl_ctx_st* get() const { return context_; }

 private:
  explicit PeerTlsContext(ssl_ctx_st* context) : context_(context) {}
  ssl_ctx_st* context_;
};

// The last error that OpenSSL has noted in this thread, in its words (those before are its causes inside
// OpenSSL); forgets all of them.
std::string take_openssl_error();

}  // namespace tandem
