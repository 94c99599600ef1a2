#include "transport/peer_security.h"

#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "transport/system_error.h"
#include "transport/unique_fd.h"

namespace tandem {
namespace {

// As long as the digest: a shorter key would be what is guessed first. Whoever connects proves before the
// listener does, so that an impostor at the address can try keys against a proof at leisure.
constexpr size_t kMinKeyBytes = 32;
// Far above any key; a wrong file is refused instead of read.
constexpr size_t kMaxKeyBytes = 4096;

std::unexpected<Error> bad_key(const std::string& name, const std::string& why) {
  return make_error(ErrorCode::invalid_argument, "peer key " + name + ": " + why);
}

}  // namespace

Result<std::vector<std::byte>> read_secret_file(const std::string& path, size_t limit_bytes) {
  const auto refuse = [&](const std::string& why) {
    return make_error(ErrorCode::invalid_argument, path + ": " + why);
  };
  // A named pipe that nobody writes would be waited for without end.
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) return refuse("cannot be read: " + system_message(errno));
  struct stat info{};
  if (fstat(file.get(), &info) != 0) return refuse(system_message(errno));
  if (!S_ISREG(info.st_mode)) return refuse("is not a file");
  if ((info.st_mode & (S_IRWXG | S_IRWXO)) != 0)
    return refuse("others than its owner may use it; chmod 600 " + path);
  if (static_cast<size_t>(info.st_size) > limit_bytes) {
    return refuse("has " + std::to_string(info.st_size) + " bytes, more than " + std::to_string(limit_bytes));
  }
  std::vector<std::byte> bytes(limit_bytes + 1);
  size_t size = 0;
  while (size < bytes.size()) {
    const ssize_t got = ::read(file.get(), bytes.data() + size, bytes.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return refuse("cannot be read: " + system_message(errno));
    if (got == 0) break;
    size += static_cast<size_t>(got);
  }
  if (size > limit_bytes) return refuse("has more than " + std::to_string(limit_bytes) + " bytes");
  bytes.resize(size);
  return bytes;
}

Result<std::shared_ptr<const PeerSecurity>> PeerSecurity::with_key_file(const std::string& path) {
  auto bytes = read_secret_file(path, kMaxKeyBytes);
  if (!bytes) return make_error(bytes.error().code, "peer key " + bytes.error().message);
  if (!bytes->empty() && bytes->back() == std::byte{'\n'}) bytes->pop_back();
  auto security = with_key(*bytes, path);
  OPENSSL_cleanse(bytes->data(), bytes->capacity());
  return security;
}

Result<std::shared_ptr<const PeerSecurity>> PeerSecurity::with_key(std::span<const std::byte> key,
                                                                   const std::string& name) {
  if (key.size() < kMinKeyBytes || key.size() > kMaxKeyBytes) {
    return bad_key(name, "has " + std::to_string(key.size()) + " bytes, not from " +
                             std::to_string(kMinKeyBytes) + " to " + std::to_string(kMaxKeyBytes) +
                             "; make one with: openssl rand -hex 32");
  }
  auto security = std::shared_ptr<PeerSecurity>(new PeerSecurity(SecurityMode::key));
  security->key_.assign(key.begin(), key.end());
  return security;
}

Result<std::shared_ptr<const PeerSecurity>> PeerSecurity::with_tls(const TlsFiles& files) {
  auto security = std::shared_ptr<PeerSecurity>(new PeerSecurity(SecurityMode::tls));
  TANDEM_ASSIGN(security->tls_, PeerTlsContext::load(files));
  return security;
}

PeerSecurity::~PeerSecurity() {
  OPENSSL_cleanse(key_.data(), key_.size());
}

Result<PeerSecurity::Digest> PeerSecurity::authenticate(std::span<const std::byte> text) const {
  Digest digest{};
  unsigned int size = 0;
  const auto* done = HMAC(EVP_sha256(), key_.data(), static_cast<int>(key_.size()),
                          reinterpret_cast<const unsigned char*>(text.data()), text.size(),
                          reinterpret_cast<unsigned char*>(digest.data()), &size);
  // An error and not some digest: whatever we would compare with, somebody could send it.
  if (done == nullptr || size != digest.size())
    return make_error(ErrorCode::internal, "HMAC-SHA256 of a handshake failed");
  return digest;
}

std::string security_name(uint32_t mode) {
  switch (static_cast<SecurityMode>(mode)) {
    case SecurityMode::none:
      return "none";
    case SecurityMode::key:
      return "a key";
    case SecurityMode::tls:
      return "TLS";
  }
  return "number " + std::to_string(mode);
}

Result<void> fill_with_randomness(std::span<std::byte> bytes) {
  if (RAND_bytes(reinterpret_cast<unsigned char*>(bytes.data()), static_cast<int>(bytes.size())) == 1)
    return {};
  return make_error(ErrorCode::internal, "the system has no random bytes for a handshake");
}

bool equal_in_constant_time(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace tandem
