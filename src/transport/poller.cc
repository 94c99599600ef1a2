#include "transport/poller.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string>

#include "transport/system_error.h"

namespace tandem {
Result<Poller> Poller::create() {
  Poller poller;
  poller.epoll_ = UniqueFd(epoll_create1(EPOLL_CLOEXEC));
  if (!poller.epoll_) return no_descriptor("epoll");
  poller.wake_ = UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!poller.wake_) return no_descriptor("eventfd");
  TANDEM_TRY(poller.add(poller.wake_.get(), kWakeKey));
  return poller;
}

Result<void> Poller::add(int fd, uint64_t key) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = key;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    return make_error(ErrorCode::internal,
                      "cannot wait for file descriptor " + std::to_string(fd) + ": " + system_message(errno));
  }
  return {};
}

void Poller::remove(int fd) {
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
}

size_t Poller::wait(Duration timeout, std::span<uint64_t> ready) {
  // More than a rank has peers; what does not fit is reported by the next wait.
  std::array<epoll_event, 64> events;
  const Duration limit = std::max(timeout, Duration::zero());
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(limit);
  const timespec wait_time{static_cast<time_t>(seconds.count()),
                           static_cast<long>(std::chrono::nanoseconds(limit - seconds).count())};
  // One more than the caller has room for: the wake event takes a place of its own.
  const int capacity = static_cast<int>(std::min(events.size(), ready.size() + 1));
  int count = epoll_pwait2(epoll_.get(), events.data(), capacity, &wait_time, nullptr);
  if (count < 0 && errno != EINTR) {
    // Older kernels, and sandboxes that do not know the call: milliseconds must do, rounded up so as not to
    // spin.
    const auto milliseconds = std::chrono::ceil<std::chrono::milliseconds>(limit).count();
    count = epoll_wait(epoll_.get(), events.data(), capacity,
                       static_cast<int>(std::min<int64_t>(milliseconds, 1'000'000)));
  }
  size_t written = 0;
  for (int i = 0; i < count; ++i) {
    if (events[i].data.u64 == kWakeKey) {
      uint64_t drained = 0;
      [[maybe_unused]] const ssize_t got = read(wake_.get(), &drained, sizeof(drained));
    } else if (written < ready.size()) {
      ready[written++] = events[i].data.u64;
    }
  }
  return written;
}

void Poller::wake() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t put =
      write(wake_.get(), &one, sizeof(one));  // full means: a wake is pending anyway
}

}  // namespace tandem
