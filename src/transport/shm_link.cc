#include "transport/shm_link.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <cerrno>

#include "transport/system_error.h"

namespace tandem {
namespace {

constexpr char kBeat = 'H';
constexpr char kBye = 'B';
constexpr int kPacketsPerLook = 64;  // a peer that never stops sending must not hold the poller

void send_byte(int socket, char byte) {
  // A full socket means that the peer does not read; then its own silence tells.
  [[maybe_unused]] const ssize_t sent = send(socket, &byte, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

}  // namespace

Result<std::unique_ptr<ShmLink>> ShmLink::create(UniqueFd socket, int doorbell) {
  UniqueFd epoll(epoll_create1(EPOLL_CLOEXEC));
  epoll_event event{};
  event.events = EPOLLIN;
  if (!epoll || epoll_ctl(epoll.get(), EPOLL_CTL_ADD, socket.get(), &event) != 0 ||
      epoll_ctl(epoll.get(), EPOLL_CTL_ADD, doorbell, &event) != 0)
    return no_descriptor("epoll");
  return std::unique_ptr<ShmLink>(new ShmLink(std::move(socket), std::move(epoll)));
}

PeerLink::News ShmLink::look() {
  News news;
  if (!socket_) {
    news.state = PeerState::closed;
    return news;
  }
  for (int i = 0; i < kPacketsPerLook; ++i) {
    char packet[2];
    const ssize_t got = recv(socket_.get(), packet, sizeof(packet), MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    if (got == 1 && packet[0] == kBeat) {
      news.heard = true;
      continue;
    }
    news.state = PeerState::closed;
    if (got == 1 && packet[0] == kBye) {
      news.orderly = true;
      news.reason = "it ended the connection";
    } else if (got <= 0) {
      news.reason = "its process ended or dropped the connection";
    } else {
      news.state = PeerState::broken;
      news.reason = "unknown packet on the shm socket";
    }
    break;
  }
  return news;
}

void ShmLink::beat() {
  if (socket_) send_byte(socket_.get(), kBeat);
}

void ShmLink::close() {
  if (!socket_) return;
  send_byte(socket_.get(), kBye);
  socket_.reset();
}

}  // namespace tandem
