#include "cli/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>

#include "cli/stop_signal.h"

namespace tandem {
namespace {

// A worker that is asked to stop answers what is in flight; a second is far more than that takes.
constexpr auto kTerminateLimit = std::chrono::seconds(1);

std::string status_text(int status) {
  if (WIFSIGNALED(status)) return "killed by signal " + std::to_string(WTERMSIG(status));
  return "exit status " + std::to_string(WEXITSTATUS(status));
}

}  // namespace

Result<ChildProcess> ChildProcess::start(const std::vector<std::string>& arguments,
                                         const std::string& binary) {
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) != 0)
    return make_error(ErrorCode::resource_exhausted, std::string("pipe: ") + std::strerror(errno));
  std::vector<char*> argv;
  std::string program = binary;
  argv.push_back(program.data());
  std::vector<std::string> copies = arguments;
  for (std::string& argument : copies) argv.push_back(argument.data());
  argv.push_back(nullptr);
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) {
    ::close(fds[0]);
    ::close(fds[1]);
    return make_error(ErrorCode::resource_exhausted, std::string("fork: ") + std::strerror(errno));
  }
  if (pid == 0) {
    // Only calls that are safe between fork and exec.
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(1);  // the parent died before prctl
    ::setpgid(0, 0);  // Ctrl-C is the parent's to handle: it still needs its experts while it drains
    ::dup2(fds[1], STDOUT_FILENO);
    ::execv(argv[0], argv.data());
    ::_exit(127);
  }
  ::close(fds[1]);
  ChildProcess child;
  child.pid_ = pid;
  child.out_fd_ = fds[0];
  return child;
}

ChildProcess& ChildProcess::operator=(ChildProcess&& other) noexcept {
  std::swap(pid_, other.pid_);
  std::swap(out_fd_, other.out_fd_);
  std::swap(exit_status_, other.exit_status_);
  std::swap(pending_, other.pending_);
  return *this;
}

ChildProcess::~ChildProcess() {
  end(kTerminateLimit);
}

void ChildProcess::end(Duration limit) {
  if (out_fd_ >= 0) ::close(std::exchange(out_fd_, -1));
  if (pid_ < 0 || !alive()) return;
  ::kill(pid_, SIGTERM);
  const Instant end = now() + limit;
  while (alive() && now() < end) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  if (alive()) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, &exit_status_, 0);
  }
}

bool ChildProcess::alive() {
  if (pid_ < 0) return false;
  if (::waitpid(pid_, &exit_status_, WNOHANG) == 0) return true;
  pid_ = -1;
  return false;
}

Result<std::string> ChildProcess::read_line(Duration limit) {
  const Instant end = now() + limit;
  while (true) {
    const size_t newline = pending_.find('\n');
    if (newline != std::string::npos) {
      std::string line = pending_.substr(0, newline);
      pending_.erase(0, newline + 1);
      return line;
    }
    if (StopSignal::requested())
      return make_error(ErrorCode::cancelled, "stopped while waiting for a child process");
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - now()).count();
    if (left <= 0) return make_error(ErrorCode::deadline_exceeded, "the child process said nothing in time");
    pollfd poll_fd = {out_fd_, POLLIN, 0};
    ::poll(&poll_fd, 1, static_cast<int>(std::min<int64_t>(left, 1000)));
    if (poll_fd.revents == 0) continue;
    char buffer[4096];
    const ssize_t got = ::read(out_fd_, buffer, sizeof(buffer));
    if (got > 0) {
      pending_.append(buffer, static_cast<size_t>(got));
    } else if (got == 0 || errno != EINTR) {
      while (alive())
        std::this_thread::sleep_for(std::chrono::milliseconds(1));  // it closed its output: it is ending
      return make_error(ErrorCode::unavailable, "the child process has ended: " + status_text(exit_status_));
    }
  }
}

}  // namespace tandem
