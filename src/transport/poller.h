// Poller: waits for file descriptors of endpoints and listeners to become readable. For the I/O threads of
// both roles.
//
// Threads: `wake` may be called by any thread; everything else belongs to the one thread that waits.
#pragma once

#include <cstdint>
#include <span>

#include "base/clock.h"
#include "base/result.h"
#include "transport/unique_fd.h"

namespace tandem {

class Poller {
 public:
  // resource_exhausted when the process has no descriptors left.
  static Result<Poller> create();

  // Level-triggered: `key` comes back from every wait while `fd` is readable. Keys are the caller's; kWakeKey
  // is taken. The fd must be removed before it is closed.
  Result<void> add(int fd, uint64_t key);
  void remove(int fd);

  // Waits for at most `timeout` (0: looks only; negative counts as 0) and writes the keys that are ready.
  // Returns how many; 0 after the timeout, a signal or `wake`.
  size_t wait(Duration timeout, std::span<uint64_t> ready);

  // Makes the wait under way, or else the next one, return at once.
  void wake();

  static constexpr uint64_t kWakeKey = UINT64_MAX;

 private:
  UniqueFd epoll_;
  UniqueFd wake_;
};

}  // namespace tandem
