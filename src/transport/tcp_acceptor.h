// TcpAcceptor: a listening socket of tcp or ucx, and the pace at which it takes connections. Strangers can
// open thousands a second, and the thread that accepts also serves those who are connected: it takes a burst
// at once, as a deployment makes that starts, and then so many a second as cost it a few percent of its time.
// The rest waits in the system's backlog. One thread.
#pragma once

#include <string>
#include <string_view>

#include "base/clock.h"
#include "transport/socket.h"
#include "transport/tcp_socket.h"

namespace tandem {

class TcpAcceptor {
 public:
  // As listen_tcp.
  static Result<TcpAcceptor> create(const Address& address);

  // Readable when `next` has a connection, or when a socket that is watched has something to read.
  int fd() const { return epoll_.get(); }
  const std::string& address() const { return address_; }

  // As accept_connection; none_waits also where the pace says so.
  Result<Accepted> next();
  void watch(int fd);
  void forget(int fd);

 private:
  TcpAcceptor(TcpListenSocket listening, UniqueFd timer, std::string_view scheme);
  void listen_again(bool wanted);

  UniqueFd socket_;
  UniqueFd epoll_;  // the listening socket, the timer, and connections that are shaking hands
  UniqueFd timer_;
  std::string address_;
  double allowed_;  // connections that may be taken now
  Instant counted_;
  bool paused_ = false;
};

}  // namespace tandem
