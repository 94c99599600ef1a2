#include "transport/tls_session.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509_vfy.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "transport/system_error.h"

namespace tandem {
namespace {

bool is_not_now(int error) {
  return error == EAGAIN || error == EWOULDBLOCK || error == EINTR;
}

}  // namespace

// OpenSSL's own socket BIO writes without MSG_NOSIGNAL: a peer that left would end this process.
struct TlsSocket {
  static TlsSession& session(BIO* bio) { return *static_cast<TlsSession*>(BIO_get_data(bio)); }

  static int write(BIO* bio, const char* bytes, int size) {
    BIO_clear_retry_flags(bio);
    const ssize_t taken = session(bio).take(std::as_bytes(std::span(bytes, static_cast<size_t>(size))));
    if (taken < 0 && is_not_now(errno)) BIO_set_retry_write(bio);
    return static_cast<int>(taken);
  }

  static int read(BIO* bio, char* bytes, int size) {
    BIO_clear_retry_flags(bio);
    const ssize_t got = recv(session(bio).socket_, bytes, static_cast<size_t>(size), MSG_DONTWAIT);
    if (got < 0 && is_not_now(errno)) BIO_set_retry_read(bio);
    return static_cast<int>(got);
  }
};

namespace {

long bio_control(BIO*, int command, long, void*) {
  return command == BIO_CTRL_FLUSH ? 1 : 0;
}

int bio_create(BIO* bio) {
  BIO_set_init(bio, 1);
  return 1;
}

// For the life of the process.
BIO_METHOD* socket_method() {
  static BIO_METHOD* const method = [] {
    BIO_METHOD* made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "tandem socket");
    if (made == nullptr) return made;
    BIO_meth_set_write(made, TlsSocket::write);
    BIO_meth_set_read(made, TlsSocket::read);
    BIO_meth_set_ctrl(made, bio_control);
    BIO_meth_set_create(made, bio_create);
    return made;
  }();
  return method;
}

// Alerts by which the peer says that our certificate does not do.
bool refuses_our_certificate(int reason) {
  switch (reason) {
    case SSL_R_TLSV13_ALERT_CERTIFICATE_REQUIRED:
    case SSL_R_TLSV1_ALERT_UNKNOWN_CA:
    case SSL_R_TLSV1_ALERT_DECRYPT_ERROR:
    case SSL_R_TLSV1_ALERT_ACCESS_DENIED:
    case SSL_R_SSLV3_ALERT_BAD_CERTIFICATE:
    case SSL_R_SSLV3_ALERT_CERTIFICATE_EXPIRED:
    case SSL_R_SSLV3_ALERT_CERTIFICATE_REVOKED:
    case SSL_R_SSLV3_ALERT_CERTIFICATE_UNKNOWN:
    case SSL_R_SSLV3_ALERT_UNSUPPORTED_CERTIFICATE:
      return true;
    default:
      return false;
  }
}

}  // namespace

Result<std::unique_ptr<TlsSession>> TlsSession::create(const PeerTlsContext& context, int socket,
                                                       bool connects) {
  SSL* ssl = SSL_new(context.get());
  BIO* bio = socket_method() == nullptr ? nullptr : BIO_new(socket_method());
  if (ssl == nullptr || bio == nullptr) {
    SSL_free(ssl);
    BIO_free(bio);
    return make_error(ErrorCode::resource_exhausted, "no memory for TLS: " + take_openssl_error());
  }
  SSL_set_bio(ssl, bio, bio);
  connects ? SSL_set_connect_state(ssl) : SSL_set_accept_state(ssl);
  std::unique_ptr<TlsSession> session(new TlsSession(ssl, socket, connects));
  BIO_set_data(bio, session.get());
  return session;
}

TlsSession::~TlsSession() {
  SSL_free(ssl_);
}

// Of an SSL call that has just returned `result`.
TlsSession::Outcome TlsSession::outcome_of(int result, bool writing) {
  const int system_error = errno;
  if (result == 1) return Outcome::done;
  switch (SSL_get_error(ssl_, result)) {
    case SSL_ERROR_WANT_READ:
    case SSL_ERROR_WANT_WRITE:
      return Outcome::waits;
    case SSL_ERROR_ZERO_RETURN:
      ended_ = true;
      return Outcome::ended;
    case SSL_ERROR_SYSCALL:
      ERR_clear_error();
      if (writing) {
        cannot_write_ = true;
        return Outcome::failed;
      }
      if (system_error == 0) {
        ended_ = true;
        return Outcome::ended;
      }
      failure_ = Error{ErrorCode::unavailable, system_message(system_error)};
      return Outcome::failed;
    default:
      break;
  }
  const int reason = ERR_GET_REASON(ERR_peek_last_error());
  const long verdict = SSL_get_verify_result(ssl_);
  if (reason == SSL_R_UNEXPECTED_EOF_WHILE_READING) {
    // A message that is cut off is seen as such by the frames above.
    ERR_clear_error();
    ended_ = true;
    return Outcome::ended;
  }
  if (reason == SSL_R_CERTIFICATE_VERIFY_FAILED) {
    ERR_clear_error();
    failure_ = Error{ErrorCode::invalid_argument,
                     std::string("its certificate is refused (") + X509_verify_cert_error_string(verdict) +
                         "); have it signed by a CA of this side's --peer-tls-ca"};
  } else if (reason == SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE) {
    ERR_clear_error();
    failure_ = Error{ErrorCode::invalid_argument,
                     "it shows no certificate; give it --peer-tls-certificate and --peer-tls-key"};
  } else if (refuses_our_certificate(reason)) {
    failure_ =
        Error{ErrorCode::invalid_argument, "it refuses our certificate (" + take_openssl_error() +
                                               "); have it signed by a CA of that side's --peer-tls-ca"};
  } else {
    const bool before = SSL_is_init_finished(ssl_) == 0;
    failure_ = Error{ErrorCode::data_loss,
                     before ? "it does not speak TLS 1.3 (" + take_openssl_error() +
                                  "); give it --peer-tls-certificate, --peer-tls-key and --peer-tls-ca, or "
                                  "this side none"
                            : "TLS: " + take_openssl_error()};
  }
  return Outcome::failed;
}

Result<bool> TlsSession::handshake() {
  const std::lock_guard lock(mutex_);
  if (SSL_is_init_finished(ssl_) != 0) return true;
  ERR_clear_error();
  errno = 0;
  switch (outcome_of(SSL_do_handshake(ssl_), false)) {
    case Outcome::done:
      return true;
    case Outcome::waits:
      return false;
    case Outcome::ended:
    case Outcome::failed:
      break;
  }
  if (failure_ && failure_->code != ErrorCode::unavailable) return std::unexpected(*failure_);
  const std::string how = failure_ ? " (" + failure_->message + ")" : "";
  return make_error(ErrorCode::unavailable,
                    connects_
                        ? "the other side closed the connection before TLS stood" + how + "; its log says why"
                        : "it closed before TLS stood" + how);
}

// Behind what waits already, so that records leave in their order.
ssize_t TlsSession::take(std::span<const std::byte> bytes) {
  if (!collects_ && out_.empty())
    return send(socket_, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  out_.insert(out_.end(), bytes.begin(), bytes.end());
  return static_cast<ssize_t>(bytes.size());
}

ssize_t TlsSession::send_out() {
  while (out_sent_ < out_.size()) {
    const ssize_t sent =
        send(socket_, out_.data() + out_sent_, out_.size() - out_sent_, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) {
      cannot_write_ = !is_not_now(errno);
      errno = cannot_write_ ? EPIPE : EAGAIN;
      return -1;
    }
    out_sent_ += static_cast<size_t>(sent);
  }
  out_.clear();
  out_sent_ = 0;
  return 0;
}

bool TlsSession::encrypt(std::span<const std::byte> bytes) {
  ERR_clear_error();
  errno = 0;
  size_t written = 0;
  // Nothing waits for the socket here: done, or failed for good.
  if (outcome_of(SSL_write_ex(ssl_, bytes.data(), bytes.size(), &written), true) == Outcome::done)
    return true;
  cannot_write_ = true;
  return false;
}

ssize_t TlsSession::write(std::span<const iovec> from) {
  const std::lock_guard lock(mutex_);
  if (ended_ || failure_ || cannot_write_) {
    errno = EPIPE;
    return -1;
  }
  if (send_out() < 0) return -1;
  collects_ = true;
  bool good = true;
  size_t taken = 0, records = 0, gathered = 0;
  const auto put = [&](std::span<const std::byte> bytes) {
    good = encrypt(bytes);
    taken += bytes.size();
    ++records;
  };
  const auto put_gathered = [&] {
    put(std::span(gathered_).first(gathered));
    gathered = 0;
  };
  for (const iovec& part : from) {
    std::span<const std::byte> bytes(static_cast<const std::byte*>(part.iov_base), part.iov_len);
    while (good && !bytes.empty() && records < kRecordsPerWrite) {
      if (gathered == 0 && bytes.size() >= kRecordBytes) {  // a record as it lies there
        put(bytes.first(kRecordBytes));
        bytes = bytes.subspan(kRecordBytes);
        continue;
      }
      const size_t take = std::min(bytes.size(), kRecordBytes - gathered);
      std::memcpy(gathered_.data() + gathered, bytes.data(), take);
      gathered += take;
      bytes = bytes.subspan(take);
      if (gathered == kRecordBytes) put_gathered();
    }
  }
  if (good && gathered > 0) put_gathered();
  collects_ = false;
  if (!good) {
    errno = EPIPE;
    return -1;
  }
  // What the socket does not take now is ours to send.
  if (send_out() < 0 && errno != EAGAIN) return -1;
  return static_cast<ssize_t>(taken);
}

bool TlsSession::has_unsent() const {
  const std::lock_guard lock(mutex_);
  return !out_.empty();
}

ssize_t TlsSession::flush() {
  const std::lock_guard lock(mutex_);
  if (out_.empty()) return 0;
  if (!ended_ && !failure_ && !cannot_write_) return send_out();
  errno = EPIPE;
  return -1;
}

ssize_t TlsSession::read(std::span<const iovec> into) {
  ssize_t total = 0;
  for (const iovec& part : into) {
    for (size_t filled = 0; filled < part.iov_len;) {
      // A record at a time: who writes does not wait for a whole message.
      const std::lock_guard lock(mutex_);
      if (ended_) return total;
      if (failure_) {
        errno = EPROTO;
        return total > 0 ? total : -1;
      }
      ERR_clear_error();
      errno = 0;
      size_t got = 0;
      const Outcome outcome = outcome_of(
          SSL_read_ex(ssl_, static_cast<std::byte*>(part.iov_base) + filled, part.iov_len - filled, &got),
          false);
      filled += got;
      total += static_cast<ssize_t>(got);
      if (outcome != Outcome::waits) continue;
      unread_ = false;
      errno = EAGAIN;
      return total > 0 ? total : -1;
    }
  }
  unread_ = true;
  return total;
}

std::optional<Error> TlsSession::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

}  // namespace tandem
