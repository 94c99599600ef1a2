// ShmLink: the Unix socket of a shm connection after the handshake. It carries heartbeats and the goodbye,
// one byte each, and its end is the death event: when the peer's process ends, however it ends, the socket
// says so at once. Poller thread only.
#pragma once

#include <memory>

#include "transport/ring_endpoint.h"
#include "transport/unique_fd.h"

namespace tandem {

class ShmLink final : public PeerLink {
 public:
  // `doorbell` wakes this side; it must outlive the link.
  static Result<std::unique_ptr<ShmLink>> create(UniqueFd socket, int doorbell);

  News look() override;
  void beat() override;
  void close() override;
  int fd() const override { return epoll_.get(); }
  // A system call: not worth more than once a millisecond while messages keep the poller awake.
  Duration look_interval() const override { return std::chrono::milliseconds(1); }

 private:
  ShmLink(UniqueFd socket, UniqueFd epoll) : socket_(std::move(socket)), epoll_(std::move(epoll)) {}

  UniqueFd socket_;
  UniqueFd epoll_;
};

}  // namespace tandem
