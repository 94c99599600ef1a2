// For tests: a CA made anew, and a certificate that it has signed, as PEM files in a folder that goes with
// the object.
#pragma once

#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>

#include "transport/tls_context.h"

namespace tandem {

class TestCertificates {
 public:
  // `valid_seconds`: from now on; negative: expired.
  explicit TestCertificates(long valid_seconds = 3600) {
    static int counter = 0;
    folder_ = std::filesystem::temp_directory_path() /
              ("tandem_certificates_" + std::to_string(::getpid()) + "_" + std::to_string(++counter));
    std::filesystem::create_directories(folder_);
    const Key ca_key(EVP_EC_gen("P-256"));
    const Key peer_key(EVP_EC_gen("P-256"));
    const Certificate ca = make("tandem test CA", ca_key, "tandem test CA", ca_key, 3600, true);
    const Certificate peer =
        make("tandem test peer", peer_key, "tandem test CA", ca_key, valid_seconds, false);
    write("ca.pem", [&](FILE* file) { return PEM_write_X509(file, ca.get()); });
    write("peer.pem", [&](FILE* file) { return PEM_write_X509(file, peer.get()); });
    write("peer.key", [&](FILE* file) {
      return PEM_write_PrivateKey(file, peer_key.get(), nullptr, nullptr, 0, nullptr, nullptr);
    });
  }
  ~TestCertificates() { std::filesystem::remove_all(folder_); }
  TestCertificates(const TestCertificates&) = delete;
  TestCertificates& operator=(const TestCertificates&) = delete;

  TlsFiles files() const { return {path("peer.pem"), path("peer.key"), path("ca.pem")}; }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }

 private:
  struct Free {
    void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
    void operator()(X509* certificate) const { X509_free(certificate); }
  };
  using Key = std::unique_ptr<EVP_PKEY, Free>;
  using Certificate = std::unique_ptr<X509, Free>;

  static Certificate make(const char* name, const Key& key, const char* issuer, const Key& issuer_key,
                          long valid_seconds, bool is_ca) {
    Certificate certificate(X509_new());
    X509* raw = certificate.get();
    X509_set_version(raw, X509_VERSION_3);
    ASN1_INTEGER_set(X509_get_serialNumber(raw), is_ca ? 1 : 2);
    X509_gmtime_adj(X509_getm_notBefore(raw), -7200);
    X509_gmtime_adj(X509_getm_notAfter(raw), valid_seconds);
    const auto say = [](X509_NAME* at, const char* text) {
      X509_NAME_add_entry_by_txt(at, "CN", MBSTRING_ASC, reinterpret_cast<const unsigned char*>(text), -1, -1,
                                 0);
    };
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
    EXPECT_GT(X509_sign(raw, issuer_key.get(), EVP_sha256()), 0);
    return certificate;
  }

  template <class Write>
  void write(const std::string& name, Write put) {
    FILE* file = std::fopen(path(name).c_str(), "w");
    ASSERT_NE(file, nullptr);
    EXPECT_EQ(put(file), 1);
    std::fclose(file);
    ::chmod(path(name).c_str(), 0600);
  }

  std::filesystem::path folder_;
};

}  // namespace tandem
