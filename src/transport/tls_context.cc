#include "transport/tls_context.h"

#include <openssl/bio.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>

#include "transport/peer_security.h"

namespace tandem {
namespace {

// A key of RSA 16384 has some 13 KB.
constexpr size_t kMaxKeyFileBytes = 64 << 10;
// Several records of 16 KiB a system call.
constexpr size_t kReadBufferBytes = 64 << 10;

struct Free {
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
  void operator()(BIO* bio) const { BIO_free(bio); }
  void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
};

// Whoever starts a rank is not there to type one.
int no_password(char*, int, int, void*) {
  return 0;
}

std::unexpected<Error> bad_file(const std::string& path, const std::string& why) {
  return make_error(ErrorCode::invalid_argument, path + ": " + why + " (" + take_openssl_error() + ")");
}

Result<std::unique_ptr<EVP_PKEY, Free>> read_key(const std::string& path) {
  TANDEM_ASSIGN(std::vector<std::byte> bytes, read_secret_file(path, kMaxKeyFileBytes));
  const std::unique_ptr<BIO, Free> memory(BIO_new_mem_buf(bytes.data(), static_cast<int>(bytes.size())));
  std::unique_ptr<EVP_PKEY, Free> key(
      memory ? PEM_read_bio_PrivateKey(memory.get(), nullptr, no_password, nullptr) : nullptr);
  OPENSSL_cleanse(bytes.data(), bytes.size());
  if (key == nullptr) return bad_file(path, "is no private key in PEM form without a password");
  return key;
}

}  // namespace

std::string take_openssl_error() {
  const unsigned long last = ERR_peek_last_error();
  ERR_clear_error();
  const char* text = last == 0 ? nullptr : ERR_reason_error_string(last);
  return text != nullptr ? text : "no reason given";
}

PeerTlsContext::~PeerTlsContext() {
  SSL_CTX_free(context_);
}

Result<std::unique_ptr<PeerTlsContext>> PeerTlsContext::load(const TlsFiles& files) {
  ERR_clear_error();
  std::unique_ptr<SSL_CTX, Free> context(SSL_CTX_new(TLS_method()));
  if (context == nullptr) return make_error(ErrorCode::resource_exhausted, "TLS: " + take_openssl_error());
  SSL_CTX* raw = context.get();
  // Each side knows the other's release: the fastest that both CPUs have goes first.
  constexpr const char* kSuites =
      "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256";
  if (SSL_CTX_set_min_proto_version(raw, TLS1_3_VERSION) != 1 || SSL_CTX_set_ciphersuites(raw, kSuites) != 1)
    return make_error(ErrorCode::unsupported,
                      "TLS 1.3: this OpenSSL does not have it (" + take_openssl_error() + ")");
  SSL_CTX_set_options(raw, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_TICKET);
  SSL_CTX_set_num_tickets(raw, 0);
  SSL_CTX_set_session_cache_mode(raw, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_mode(raw, SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER | SSL_MODE_RELEASE_BUFFERS);
  SSL_CTX_set_read_ahead(raw, 1);
  SSL_CTX_set_default_read_buffer_len(raw, kReadBufferBytes);
  SSL_CTX_set_verify(raw, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  if (SSL_CTX_use_certificate_chain_file(raw, files.certificate.c_str()) != 1)
    return bad_file(files.certificate, "is no certificate in PEM form that can be read");
  TANDEM_ASSIGN(const auto key, read_key(files.key));
  if (SSL_CTX_use_PrivateKey(raw, key.get()) != 1 || SSL_CTX_check_private_key(raw) != 1)
    return bad_file(files.key, "is not the key of the certificate " + files.certificate);
  if (SSL_CTX_load_verify_locations(raw, files.ca.c_str(), nullptr) != 1)
    return bad_file(files.ca, "has no certificate of a CA in PEM form that can be read");
  return std::unique_ptr<PeerTlsContext>(new PeerTlsContext(context.release()));
}

}  // namespace tandem
