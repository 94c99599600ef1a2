#include "transport/reserved_port.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <string>

#include "transport/system_error.h"

namespace tandem {

Result<ReservedPort> ReservedPort::create() {
  ReservedPort reserved;
  reserved.socket_ = UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  const int fd = reserved.socket_.get();
  const bool bound = fd >= 0 && ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
                     ::bind(fd, generic, size) == 0 && ::getsockname(fd, generic, &size) == 0;
  if (!bound) {
    return make_error(ErrorCode::resource_exhausted,
                      std::string("no TCP port of 127.0.0.1 can be reserved: ") + system_message(errno));
  }
  reserved.port_ = ntohs(address.sin_port);
  return reserved;
}

}  // namespace tandem
