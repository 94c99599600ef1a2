// TlsSession: TLS of one connection over a non-blocking socket that somebody else owns. What a write takes is
// encrypted at once, several records for one system call: what the socket did not take of them is continued
// by `flush`, whatever the caller writes next.
//
// Threads: one that reads (also `handshake` and `has_unread`), one at a time that writes.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "transport/tls_context.h"

struct ssl_st;

namespace tandem {

class TlsSession {
 public:
  // `context` outlives the session.
  static Result<std::unique_ptr<TlsSession>> create(const PeerTlsContext& context, int socket, bool connects);
  ~TlsSession();
  TlsSession(const TlsSession&) = delete;
  TlsSession& operator=(const TlsSession&) = delete;

  // Goes as far as it can without waiting: true when both sides have shown their certificates, as far as this
  // one knows (whoever connected hears of a refusal from `read`). invalid_argument: a certificate is refused,
  // here or there; data_loss: the peer does not speak TLS; unavailable: the connection ended.
  Result<bool> handshake();

  // As TcpStream. `write` takes at most kRecordsPerWrite records of 16 KiB.
  ssize_t write(std::span<const iovec> from);
  ssize_t read(std::span<const iovec> into);
  // Bytes that `write` has taken wait for the socket: flush when it is writable, 0 when all have gone. -1
  // with errno as `write`.
  bool has_unsent() const;
  ssize_t flush();
  // What has come may have more: no event of the socket will tell.
  bool has_unread() const { return unread_; }
  // Why the session ended, where TLS knows.
  std::optional<Error> failure() const;

 private:
  static constexpr size_t kRecordBytes = 16384;  // what TLS puts into one
  // A system call and the peer's waking up cost as much as encrypting a record; with more of them at once the
  // peer decrypts late.
  static constexpr size_t kRecordsPerWrite = 8;
  friend struct TlsSocket;
  enum class Outcome : uint8_t { done, waits, ended, failed };
  TlsSession(ssl_st* ssl, int socket, bool connects) : ssl_(ssl), connects_(connects), socket_(socket) {}
  Outcome outcome_of(int result, bool writing);    // under mutex_
  bool encrypt(std::span<const std::byte> bytes);  // under mutex_; false: the session has failed
  ssize_t send_out();                              // under mutex_
  // What OpenSSL writes.
  ssize_t take(std::span<const std::byte> bytes);

  mutable std::mutex mutex_;  // one thread at a time inside ssl_
  ssl_st* ssl_;
  const bool connects_;
  const int socket_;  // ssl_ reads and writes it, see TlsSocket
  std::vector<std::byte> out_;  // encrypted, to be sent from out_sent_ on
  size_t out_sent_ = 0;
  bool collects_ = false;                         // what is encrypted waits in out_ for the rest of a write
  std::array<std::byte, kRecordBytes> gathered_;  // a record of several small parts
  std::optional<Error> failure_;
  bool ended_ = false;
  bool cannot_write_ = false;  // what came before the end is still read
  bool unread_ = true;         // until a read has found nothing
};

}  // namespace tandem
