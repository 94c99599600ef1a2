// BareFloor: what a round trip costs at least: two processes, the bytes written into a shared slot, copied by
// the other process into the answer's slot and read out, with flags that both spin on. No credits, no checks,
// nobody sleeps. Every carrier makes the same three copies and is compared with it.
//
// One thread. Forks a process, which sleeps but between begin and end, and ends with this object or
// its process.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <memory>
#include <span>

#include "base/result.h"
#include "transport/unique_fd.h"

namespace tandem {

class BareFloor {
 public:
  // Room for `messages` messages of up to `bytes` each way. The other process stays on `cpu` (-1: on any).
  static Result<std::unique_ptr<BareFloor>> create(size_t messages, size_t bytes, int cpu);
  ~BareFloor();

  // The other process wakes, and spins for round trips of this shape until `end`.
  Result<void> begin(size_t messages, size_t bytes);
  void end();
  // Between them: each message is source, the last answer ends up in target. unavailable: the other process
  // is gone.
  Result<void> round_trip(std::span<const std::byte> source, std::span<std::byte> target);

 private:
  struct Order {
    size_t messages, bytes;
  };
  struct Words;
  std::atomic<uint32_t>& stop() const;
  BareFloor(std::byte* base, size_t total, size_t messages, size_t stride)
      : base_(base), total_(total), messages_(messages), stride_(stride) {}
  Words& words(size_t message) const;
  std::byte* slot(int direction, size_t message) const;
  [[noreturn]] void serve(int orders);

  std::byte* base_;
  size_t total_;
  size_t messages_;  // at most
  size_t stride_;
  UniqueFd orders_;
  pid_t process_ = -1;
  Order order_{};
  uint32_t round_ = 0;
};

}  // namespace tandem
