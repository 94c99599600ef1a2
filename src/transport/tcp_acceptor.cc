#include "transport/tcp_acceptor.h"

#include <sys/epoll.h>
#include <sys/timerfd.h>

#include <algorithm>
#include <cerrno>

#include "transport/system_error.h"

namespace tandem {
namespace {

// What the backlog holds: every rank of a large deployment that starts at once.
constexpr double kBurst = 128;
// A stranger costs some 40 us from accept to close: 2 % of a CPU at this rate. A deployment of 100 ranks that
// all come back at once is through in a second even behind a flood.
constexpr double kPerSecond = 500;
// Often enough that the backlog does not run over meanwhile, seldom enough that waking costs nothing.
constexpr long kPauseNanoseconds = 16'000'000;

}  // namespace

TcpAcceptor::TcpAcceptor(TcpListenSocket listening, UniqueFd timer, std::string_view scheme)
    : socket_(std::move(listening.socket)),
      epoll_(std::move(listening.epoll)),
      timer_(std::move(timer)),
      address_(tcp_name_of_local_end(socket_.get(), scheme)),
      allowed_(kBurst),
      counted_(now()) {}

Result<TcpAcceptor> TcpAcceptor::create(const Address& address) {
  TANDEM_ASSIGN(TcpListenSocket listening, listen_tcp(address));
  UniqueFd timer(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
  epoll_event event{};
  event.events = EPOLLIN;
  if (!timer || epoll_ctl(listening.epoll.get(), EPOLL_CTL_ADD, timer.get(), &event) != 0) {
    return make_error(ErrorCode::resource_exhausted,
                      "timerfd: " + system_message(errno) + "; raise the limit of open files (ulimit -n)");
  }
  return TcpAcceptor(std::move(listening), std::move(timer), address.scheme);
}

void TcpAcceptor::listen_again(bool wanted) {
  paused_ = !wanted;
  epoll_event event{};
  event.events = wanted ? EPOLLIN : 0u;
  epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, socket_.get(), &event);
  if (wanted) return;
  itimerspec once{};
  once.it_value.tv_nsec = kPauseNanoseconds;
  timerfd_settime(timer_.get(), 0, &once, nullptr);
}

Result<Accepted> TcpAcceptor::next() {
  Accepted none;
  none.none_waits = true;
  const Instant at = now();
  const double seconds = std::chrono::duration<double>(at - counted_).count();
  if (paused_) {
    uint64_t fired = 0;
    if (::read(timer_.get(), &fired, sizeof(fired)) != sizeof(fired)) return none;
    listen_again(true);
  }
  allowed_ = std::min(kBurst, allowed_ + seconds * kPerSecond);
  counted_ = at;
  if (allowed_ < 1) {
    listen_again(false);
    return none;
  }
  TANDEM_ASSIGN(Accepted taken, accept_connection(socket_.get(), address_));
  if (!taken.none_waits) allowed_ -= 1;
  return taken;
}

void TcpAcceptor::watch(int fd) {
  epoll_event event{};
  event.events = EPOLLIN;
  epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event);
}

void TcpAcceptor::forget(int fd) {
  if (fd >= 0) epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
}

}  // namespace tandem
