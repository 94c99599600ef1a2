#include "transport/acceptor.h"

#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>

#include "transport/system_error.h"

namespace tandem {
namespace {

// What the backlog holds: every rank of a large deployment that starts at once.
constexpr double kBurst = 128;
// A stranger costs some 40 us from accept to close: 2 % of a CPU at this rate. A deployment of 100 ranks that
// all come back at once is through in a second even behind a flood.
constexpr double kPerSecond = 500;
// Often enough that the backlog does not run over meanwhile, seldom enough that waking costs nothing.
constexpr Duration kPause = std::chrono::milliseconds(16);
// Whoever waits is not kept waiting for long once somebody has left, and the log gets four lines a second.
constexpr Duration kDescriptorPause = std::chrono::milliseconds(250);

}  // namespace

Acceptor::Acceptor(int listening, UniqueFd epoll, UniqueFd timer, std::string address)
    : listening_(listening),
      epoll_(std::move(epoll)),
      timer_(std::move(timer)),
      address_(std::move(address)),
      allowed_(kBurst),
      counted_(now()) {}

Result<Acceptor> Acceptor::create(int listening, std::string address) {
  UniqueFd epoll(epoll_create1(EPOLL_CLOEXEC));
  UniqueFd timer(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
  epoll_event event{};
  event.events = EPOLLIN;
  for (const int fd : {listening, timer.get()}) {
    if (!epoll || !timer || epoll_ctl(epoll.get(), EPOLL_CTL_ADD, fd, &event) != 0)
      return no_descriptor("epoll of a listener");
  }
  return Acceptor(listening, std::move(epoll), std::move(timer), std::move(address));
}

void Acceptor::wait_for_connections(bool wanted) {
  epoll_event event{};
  event.events = wanted ? EPOLLIN : 0u;
  epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, listening_, &event);
}

void Acceptor::pause(Duration length) {
  paused_ = true;
  wait_for_connections(false);
  itimerspec once{};
  once.it_value.tv_nsec = std::chrono::nanoseconds(length).count();  // below a second
  timerfd_settime(timer_.get(), 0, &once, nullptr);
}

bool Acceptor::is_paused() {
  if (!paused_) return false;
  uint64_t fired = 0;
  if (::read(timer_.get(), &fired, sizeof(fired)) != sizeof(fired)) return true;
  wait_for_connections(true);
  paused_ = false;
  return false;
}

Result<Accepted> Acceptor::next() {
  Accepted none;
  none.none_waits = true;
  if (is_paused()) return none;
  const Instant at = now();
  allowed_ = std::min(kBurst, allowed_ + std::chrono::duration<double>(at - counted_).count() * kPerSecond);
  counted_ = at;
  if (allowed_ < 1) {
    pause(kPause);
    return none;
  }
  auto taken = accept_connection(listening_, address_);
  if (!taken) {
    pause(kDescriptorPause);
  } else if (!taken->none_waits) {
    allowed_ -= 1;
  }
  return taken;
}

void Acceptor::watch(int fd) {
  epoll_event event{};
  event.events = EPOLLIN;
  epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event);
}

void Acceptor::watch_for_end(int fd) {
  epoll_event event{};
  event.events = EPOLLRDHUP;
  epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event);
}

void Acceptor::forget(int fd) {
  if (fd >= 0) epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
}

}  // namespace tandem
