#include "transport/throwaway_certificates.h"

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>

namespace tandem {
namespace {

// A clock that is an hour or so behind is no reason to refuse.
constexpr long kValidBeforeSeconds = 7200, kCaSeconds = 3600;

struct Free {
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
  void operator()(X509* certificate) const { X509_free(certificate); }
};
using Key = std::unique_ptr<EVP_PKEY, Free>;
using Certificate = std::unique_ptr<X509, Free>;

void say(X509_NAME* at, const char* text) {
  X509_NAME_add_entry_by_txt(at, "CN", MBSTRING_ASC, reinterpret_cast<const unsigned char*>(text), -1, -1, 0);
}

// Null: OpenSSL could not.
Certificate make(const char* name, const Key& key, const char* issuer, const Key& issuer_key,
                 long valid_seconds, bool is_ca) {
  Certificate certificate(X509_new());
  X509* raw = certificate.get();
  if (raw == nullptr || !key || !issuer_key) return nullptr;
  X509_set_version(raw, X509_VERSION_3);
  ASN1_INTEGER_set(X509_get_serialNumber(raw), is_ca ? 1 : 2);
  X509_gmtime_adj(X509_getm_notBefore(raw), -kValidBeforeSeconds);
  X509_gmtime_adj(X509_getm_notAfter(raw), valid_seconds);
  say(X509_get_subject_name(raw), name);
  X509_NAME* issuer_name = X509_NAME_new();
  say(issuer_name, issuer);
  X509_set_issuer_name(raw, issuer_name);
  X509_NAME_free(issuer_name);
  X509_set_pubkey(raw, key.get());
  if (is_ca) {
    X509_EXTENSION* extension =
        X509V3_EXT_conf_nid(nullptr, nullptr, NID_basic_constraints, "critical,CA:TRUE");
    X509_add_ext(raw, extension, -1);
    X509_EXTENSION_free(extension);
  }
  return X509_sign(raw, issuer_key.get(), EVP_sha256()) > 0 ? std::move(certificate) : nullptr;
}

template <class Write>
bool write(const std::string& path, Write put) {
  FILE* file = std::fopen(path.c_str(), "w");
  if (file == nullptr) return false;
  const bool written = put(file) == 1;
  return std::fclose(file) == 0 && written && ::chmod(path.c_str(), 0600) == 0;
}

}  // namespace

Result<std::unique_ptr<ThrowawayCertificates>> ThrowawayCertificates::create(long valid_seconds) {
  static std::atomic<int> counter = 0;
  std::error_code failed;
  std::filesystem::path folder = std::filesystem::temp_directory_path(failed);
  if (!failed) {
    folder /= "tandem_certificates_" + std::to_string(::getpid()) + "_" + std::to_string(++counter);
    std::filesystem::create_directories(folder, failed);
  }
  const auto cannot = [&] {
    return make_error(ErrorCode::unavailable, "cannot make certificates in " + folder.string() +
                                                  "; set TMPDIR to a folder that can be "
                                                  "written");
  };
  if (failed) return cannot();
  std::unique_ptr<ThrowawayCertificates> made(new ThrowawayCertificates(std::move(folder)));
  const Key ca_key(EVP_EC_gen("P-256")), peer_key(EVP_EC_gen("P-256"));
  const Certificate ca = make("tandem throwaway CA", ca_key, "tandem throwaway CA", ca_key, kCaSeconds, true);
  const Certificate peer =
      make("tandem throwaway peer", peer_key, "tandem throwaway CA", ca_key, valid_seconds, false);
  if (!ca || !peer) return make_error(ErrorCode::internal, "OpenSSL makes no certificates");
  const bool written =
      write(made->path("ca.pem"), [&](FILE* file) { return PEM_write_X509(file, ca.get()); }) &&
      write(made->path("peer.pem"), [&](FILE* file) { return PEM_write_X509(file, peer.get()); }) &&
      write(made->path("peer.key"), [&](FILE* file) {
        return PEM_write_PrivateKey(file, peer_key.get(), nullptr, nullptr, 0, nullptr, nullptr);
      });
  if (written) return made;
  folder = made->folder_;
  return cannot();
}

ThrowawayCertificates::~ThrowawayCertificates() {
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

}  // namespace tandem
