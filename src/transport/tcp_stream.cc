#include "transport/tcp_stream.h"

#include <sys/socket.h>

#include <cstddef>

namespace tandem {

ssize_t TcpStream::write(std::span<const iovec> from) {
  if (tls_) return tls_->write(from);
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(from.data());
  message.msg_iovlen = from.size();
  return sendmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
}

ssize_t TcpStream::read(std::span<const iovec> into) {
  if (tls_) return tls_->read(into);
  return readv(socket_.get(), into.data(), static_cast<int>(into.size()));
}

bool TcpStream::write_short(std::span<const std::byte> bytes) {
  const iovec vector{const_cast<std::byte*>(bytes.data()), bytes.size()};
  return write({&vector, 1}) == static_cast<ssize_t>(bytes.size());
}

ssize_t TcpStream::read_some(std::span<std::byte> into) {
  const iovec vector{into.data(), into.size()};
  return read({&vector, 1});
}

}  // namespace tandem
