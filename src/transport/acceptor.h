// Acceptor: takes connections of a listening socket, at its pace. Strangers can open thousands a second, and
// the thread that accepts also serves those who are connected: it takes a burst at once, as a deployment
// makes that starts, and then so many a second as cost it a few percent of its time. The rest waits in the
// system's backlog, as everybody does while there is no descriptor for one more. One thread.
#pragma once

#include <string>

#include "base/clock.h"
#include "transport/socket.h"

namespace tandem {

class Acceptor {
 public:
  // `listening`: a non-blocking socket that somebody else owns, for as long as this is used. `address`: what
  // messages call it.
  static Result<Acceptor> create(int listening, std::string address);

  // Readable when `next` has a connection, or when a socket that is watched has something to read.
  int fd() const { return epoll_.get(); }
  const std::string& address() const { return address_; }

  // As accept_connection; none_waits also where the pace says so. After resource_exhausted it pauses: the
  // connection that waits would wake the thread without end.
  Result<Accepted> next();
  void watch(int fd);
  // What comes to a watched socket waits for somebody else: only its end counts from now on.
  void watch_for_end(int fd);
  void forget(int fd);

 private:
  Acceptor(int listening, UniqueFd epoll, UniqueFd timer, std::string address);
  void pause(Duration length);
  bool is_paused();
  void wait_for_connections(bool wanted);

  int listening_;
  UniqueFd epoll_;  // the listening socket, the timer, and what is watched
  UniqueFd timer_;
  std::string address_;
  double allowed_;  // connections that may be taken now
  Instant counted_;
  bool paused_ = false;
};

}  // namespace tandem
