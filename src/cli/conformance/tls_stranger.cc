#include "cli/conformance/tls_stranger.h"

#include <fmt/format.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include "cli/conformance/case.h"

namespace tandem::conformance {
namespace {

struct Free {
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
  void operator()(X509* certificate) const { X509_free(certificate); }
  void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
  void operator()(SSL* ssl) const { SSL_free(ssl); }
};
using Context = std::unique_ptr<SSL_CTX, Free>;

// Longer than any test of a rank.
constexpr long kValidSeconds = 24 * 3600;

std::unexpected<Error> no_tls(const std::string& what) {
  return make_error(ErrorCode::internal, "conformance: " + what + ": " + take_openssl_error());
}

// A certificate of nobody's CA, made for this process.
bool use_own_certificate(SSL_CTX* context) {
  const std::unique_ptr<EVP_PKEY, Free> key(EVP_EC_gen("P-256"));
  const std::unique_ptr<X509, Free> certificate(X509_new());
  if (key == nullptr || certificate == nullptr) return false;
  X509* raw = certificate.get();
  X509_set_version(raw, X509_VERSION_3);
  ASN1_INTEGER_set(X509_get_serialNumber(raw), 1);
  X509_gmtime_adj(X509_getm_notBefore(raw), -kValidSeconds);
  X509_gmtime_adj(X509_getm_notAfter(raw), kValidSeconds);
  X509_NAME* name = X509_get_subject_name(raw);
  const auto* text = reinterpret_cast<const unsigned char*>("a stranger of tandem conformance");
  return X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, text, -1, -1, 0) == 1 &&
         X509_set_issuer_name(raw, name) == 1 && X509_set_pubkey(raw, key.get()) == 1 &&
         X509_sign(raw, key.get(), EVP_sha256()) > 0 && SSL_CTX_use_certificate(context, raw) == 1 &&
         SSL_CTX_use_PrivateKey(context, key.get()) == 1;
}

// The one that peers of the rank show.
bool use_right_certificate(SSL_CTX* context, const SSL_CTX* right) {
  return SSL_CTX_use_certificate(context, SSL_CTX_get0_certificate(right)) == 1 &&
         SSL_CTX_use_PrivateKey(context, SSL_CTX_get0_privatekey(right)) == 1;
}

Result<Context> context_of(Lab& lab, TlsStranger stranger) {
  Context context(SSL_CTX_new(TLS_client_method()));
  if (context == nullptr) return no_tls("TLS");
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_NONE, nullptr);
  bool made = true;
  if (stranger == TlsStranger::foreign_certificate) made = use_own_certificate(context.get());
  if (stranger == TlsStranger::old_version) {
    made = use_right_certificate(context.get(), lab.security()->tls()->get()) &&
           SSL_CTX_set_max_proto_version(context.get(), TLS1_2_VERSION) == 1;
  }
  if (!made) return no_tls("a certificate");
  return context;
}

// What TLS wants to say goes to the rank; false: the rank takes nothing more.
bool pass_on(BIO* from, Connection& to) {
  std::array<std::byte, 4096> bytes;
  while (BIO_ctrl_pending(from) > 0) {
    const int count = BIO_read(from, bytes.data(), static_cast<int>(bytes.size()));
    if (count <= 0 || !to.send(std::span(bytes).first(static_cast<size_t>(count)))) return false;
  }
  return true;
}

}  // namespace

Status expect_refused(Lab& lab, TlsStranger stranger) {
  TANDEM_ASSIGN(const Context context, context_of(lab, stranger));
  TANDEM_ASSIGN(const auto wire, Connection::open(lab.peer, lab.connections, Wrap::none));
  const std::unique_ptr<SSL, Free> ssl(SSL_new(context.get()));
  BIO *from_rank = BIO_new(BIO_s_mem()), *to_rank = BIO_new(BIO_s_mem());
  if (ssl == nullptr || from_rank == nullptr || to_rank == nullptr) {
    BIO_free(from_rank);
    BIO_free(to_rank);
    return no_tls("no memory");
  }
  SSL_set_bio(ssl.get(), from_rank, to_rank);
  SSL_set_connect_state(ssl.get());
  const Bytes greeting = carrier_greeting(lab.facts.carrier);
  const Instant deadline = now() + lab.patience();
  bool greeted = false;
  while (true) {
    ERR_clear_error();  // SSL_get_error reads what is left of any call
    int result = SSL_do_handshake(ssl.get());
    if (result == 1 && !greeted) {
      greeted = true;
      SSL_write(ssl.get(), greeting.data(), static_cast<int>(greeting.size()));
    }
    if (result == 1) {
      std::array<std::byte, 4096> heard;
      result = SSL_read(ssl.get(), heard.data(), static_cast<int>(heard.size()));
      if (result > 0)
        return mismatch("the end of the connection, and no byte inside TLS", fmt::format("{} bytes", result));
    }
    const bool waits = SSL_get_error(ssl.get(), result) == SSL_ERROR_WANT_READ;
    const bool passed = pass_on(to_rank, *wire);
    if (!waits || !passed) return {};  // an alert, or the end
    const auto said = wire->next_bytes(deadline - now());
    if (!said) return {};
    if (said->empty()) return mismatch("the end of the connection", "an open one");
    BIO_write(from_rank, said->data(), static_cast<int>(said->size()));
  }
}

}  // namespace tandem::conformance
