// Unix sockets of the shm transport: a path that is owned, packets that carry file descriptors, and who the
// peer is. SOCK_SEQPACKET: packets keep their borders, and the end of the peer's process is the end of the
// stream. Any thread.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "transport/unique_fd.h"

namespace tandem {

// A listening socket at a path, for this user only (mode 0600). The destructor removes the path if it is
// still ours.
class UnixListenSocket {
 public:
  // A path left over by a process that ended is replaced. invalid_argument: something lives there, the path
  // is something else, is too long or not absolute, or the folder is missing, closed to us or open to
  // everybody (world-writable without the sticky bit); unavailable: somebody keeps the folder locked.
  static Result<UnixListenSocket> bind(const std::string& path);
  UnixListenSocket(UnixListenSocket&& other) noexcept = default;
  UnixListenSocket& operator=(UnixListenSocket&& other) = delete;
  ~UnixListenSocket();

  int fd() const { return socket_.get(); }

 private:
  UnixListenSocket() = default;
  UniqueFd socket_;
  std::string path_;
  dev_t device_ = 0;
  ino_t inode_ = 0;
};

// A connected non-blocking socket. unavailable: nothing lives at the path; would_block: its backlog is full,
// which poll does not wait for.
Result<UniqueFd> connect_unix(const std::string& path);

struct UnixPeer {
  pid_t pid = 0;
  uid_t uid = 0;
};
Result<UnixPeer> unix_peer(int socket);

// One packet with descriptors, without waiting: 0 bytes means the end; would_block, or unavailable with the
// reason. Descriptors that come are owned by `fds`.
Result<size_t> receive_packet(int socket, std::span<std::byte> bytes, std::vector<UniqueFd>& fds);
Result<void> send_packet(int socket, std::span<const std::byte> bytes, std::span<const int> fds);

}  // namespace tandem
