// TcpStream: the connected socket of a tcp connection as the bytes of frames see it: plain, or inside TLS.
// Owns the socket.
//
// Threads: one may read while another writes; two writers need a lock of their own.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "transport/tls_session.h"
#include "transport/unique_fd.h"

namespace tandem {

class TcpStream {
 public:
  TcpStream() = default;
  // Takes a connected non-blocking socket; `tls`, of that socket, may be null.
  explicit TcpStream(UniqueFd socket, std::unique_ptr<TlsSession> tls = nullptr)
      : socket_(std::move(socket)), tls_(std::move(tls)) {}

  int socket() const { return socket_.get(); }
  explicit operator bool() const { return static_cast<bool>(socket_); }
  bool encrypted() const { return tls_ != nullptr; }

  // Before the first byte is written or read: true when it may be. Errors as TlsSession::handshake.
  Result<bool> handshake() { return tls_ ? tls_->handshake() : Result<bool>(true); }

  // As sendmsg and readv: how many bytes, in the order of the vectors; -1 with errno, EAGAIN for "not now".
  // Never waits, never raises SIGPIPE. `read` gives 0 at the end; fewer bytes than there is room for mean
  // that nothing more has come.
  ssize_t write(std::span<const iovec> from);
  ssize_t read(std::span<const iovec> into);
  // Sends all of a few bytes, which an empty socket takes at once: false when it did not.
  bool write_short(std::span<const std::byte> bytes);
  // `read` for one span.
  ssize_t read_some(std::span<std::byte> into);

  // TLS alone: written bytes that the socket has not taken (flush them when it is writable), and bytes that
  // have come and that no event of the socket tells.
  bool has_unsent() const { return tls_ && tls_->has_unsent(); }
  ssize_t flush() { return tls_ ? tls_->flush() : 0; }
  bool has_unread() const { return tls_ && tls_->has_unread(); }
  // Why the connection ended, where TLS knows.
  std::optional<Error> failure() const { return tls_ ? tls_->failure() : std::nullopt; }

  // Of a plain stream: to put TLS around it.
  UniqueFd take_socket() { return std::move(socket_); }

  void reset() {
    tls_.reset();
    socket_.reset();
  }

 private:
  UniqueFd socket_;
  std::unique_ptr<TlsSession> tls_;  // goes before the socket
};

}  // namespace tandem
