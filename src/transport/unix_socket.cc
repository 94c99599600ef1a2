#include "transport/unix_socket.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>
#include <thread>

#include "transport/system_error.h"

namespace tandem {
namespace {

constexpr int kBacklog = 128;
constexpr size_t kMaxDescriptors =
    8;  // more than any packet of ours has; what goes beyond is closed by the system

// Our own keep a folder locked for some system calls. Anybody may lock one that everybody may read, such as
// /tmp, for as long as he likes, and nobody's start shall hang on that.
constexpr Duration kLockLimit = std::chrono::seconds(2);

std::unexpected<Error> bad_path(const std::string& path, const std::string& why) {
  return make_error(ErrorCode::invalid_argument, "address shm://" + path + ": " + why);
}

Result<sockaddr_un> socket_address(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.front() != '/') return bad_path(path, "the path is not absolute; write shm:///run/name.sock");
  if (path.size() >= sizeof(address.sun_path)) {
    return bad_path(path, "the path has " + std::to_string(path.size()) + " bytes, a socket's has at most " +
                              std::to_string(sizeof(address.sun_path) - 1) + "; choose a shorter one");
  }
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  return address;
}

Result<UniqueFd> new_socket() {
  UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket) return no_descriptor("socket");
  return socket;
}

// False: somebody else keeps it. Where the file system has no locks there is nothing to wait for.
bool lock_exclusively(int fd) {
  for (const Instant end = now() + kLockLimit; flock(fd, LOCK_EX | LOCK_NB) != 0;) {
    if (errno != EWOULDBLOCK && errno != EINTR) return true;
    if (now() >= end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

int connect_once(int socket, const sockaddr_un& address) {
  return ::connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 ? 0 : errno;
}

// Makes the path free: removes what a dead process left, refuses everything else that is there.
Result<void> clear_path(const std::string& path, const sockaddr_un& address) {
  struct stat info{};
  if (lstat(path.c_str(), &info) != 0) return {};  // free, or bind will say what is wrong
  if (!S_ISSOCK(info.st_mode)) return bad_path(path, "exists and is not a socket; choose another path");
  TANDEM_ASSIGN(const UniqueFd probe, new_socket());
  const int error = connect_once(probe.get(), address);
  if (error != ECONNREFUSED) {
    return make_error(
        ErrorCode::invalid_argument,
        "address shm://" + path + " is taken by a live process; choose another path, or stop it");
  }
  if (unlink(path.c_str()) != 0 && errno != ENOENT) {
    return bad_path(path, "is left over and cannot be removed (" + system_message(errno) + "); remove it");
  }
  return {};
}

}  // namespace

Result<UnixListenSocket> UnixListenSocket::bind(const std::string& path) {
  TANDEM_ASSIGN(const sockaddr_un address, socket_address(path));
  // Two processes that find the same leftover must not each remove what the other has just made: one at a
  // time.
  const std::string folder = path.substr(0, std::max<size_t>(path.rfind('/'), 1));
  const UniqueFd lock(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!lock)
    return bad_path(path,
                    "folder " + folder + ": " + system_message(errno) + "; create it, or choose another");
  struct stat folder_info{};
  // Anybody could put a socket of his own in the place of ours; the peer would refuse it (it is not this
  // user's), and find nobody else.
  if (fstat(lock.get(), &folder_info) == 0 && (folder_info.st_mode & S_IWOTH) != 0 &&
      (folder_info.st_mode & S_ISVTX) == 0) {
    return bad_path(path,
                    "every user may replace files in " + folder + "; chmod o-w or +t it, or choose another");
  }
  if (!lock_exclusively(lock.get())) {
    return make_error(ErrorCode::unavailable, "address shm://" + path + ": another process keeps folder " +
                                                  folder + " locked; choose a folder of this user's own");
  }
  TANDEM_TRY(clear_path(path, address));
  UnixListenSocket result;
  TANDEM_ASSIGN(result.socket_, new_socket());
  fchmod(result.socket_.get(), 0600);  // taken over by bind: the path is never open to others
  if (::bind(result.socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return bad_path(path, system_message(errno) + "; choose a folder that this user may write to");
  }
  result.path_ = path;
  struct stat info{};
  if (lstat(path.c_str(), &info) == 0) {
    result.device_ = info.st_dev;
    result.inode_ = info.st_ino;
  }
  if (::listen(result.socket_.get(), kBacklog) != 0) return bad_path(path, system_message(errno));
  return result;
}

UnixListenSocket::~UnixListenSocket() {
  struct stat info{};
  if (!socket_ || lstat(path_.c_str(), &info) != 0) return;
  if (info.st_dev == device_ && info.st_ino == inode_) unlink(path_.c_str());
}

Result<UniqueFd> connect_unix(const std::string& path) {
  TANDEM_ASSIGN(const sockaddr_un address, socket_address(path));
  TANDEM_ASSIGN(UniqueFd socket, new_socket());
  const int error = connect_once(socket.get(), address);
  if (error == 0) return socket;
  const std::string name = "shm://" + path;
  if (error == EAGAIN || error == EINTR)
    return make_error(ErrorCode::would_block, name + " has a full backlog; the peer does not accept");
  const std::string why = error == ENOENT         ? "nothing is there"
                          : error == ECONNREFUSED ? "left over by a process that ended"
                                                  : system_message(error);
  return make_error(ErrorCode::unavailable,
                    "cannot connect to " + name + ": " + why + "; start the peer first, or check the path");
}

Result<UnixPeer> unix_peer(int socket) {
  ucred credentials{};
  socklen_t length = sizeof(credentials);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) {
    return make_error(ErrorCode::internal, "SO_PEERCRED: " + system_message(errno));
  }
  return UnixPeer{credentials.pid, credentials.uid};
}

Result<size_t> receive_packet(int socket, std::span<std::byte> bytes, std::vector<UniqueFd>& fds) {
  iovec vector{bytes.data(), bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxDescriptors)];
  msghdr message{};
  message.msg_iov = &vector;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  ssize_t got = 0;
  do {
    got = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
    return make_error(ErrorCode::would_block, "no packet");
  if (got < 0) return make_error(ErrorCode::unavailable, system_message(errno));
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof(fd));
      fds.emplace_back(fd);
    }
  }
  return static_cast<size_t>(got);
}

Result<void> send_packet(int socket, std::span<const std::byte> bytes, std::span<const int> fds) {
  iovec vector{const_cast<std::byte*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxDescriptors)] = {};
  msghdr message{};
  message.msg_iov = &vector;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(fds.size_bytes());
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(header), fds.data(), fds.size_bytes());
  }
  ssize_t sent = 0;
  do {
    sent = sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  if (sent < 0) return make_error(ErrorCode::unavailable, system_message(errno));
  return {};
}

}  // namespace tandem
