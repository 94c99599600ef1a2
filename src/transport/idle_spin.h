// IdleSpin: whether a thread that waits for messages looks once more before it sleeps. Behind a message the
// next one is often near: the other side copies it right now. A thread that looks for it instead of sleeping
// saves the wake-up on both sides: its own, and the system call of the peer, which rings for sleepers only.
// Not thread-safe.
//
//   for (;;) {
//     if (endpoint.poll(out) != 0) { spin.found(); ...; continue; }
//     if (spin.again()) continue;
//     if (endpoint.arm()) poller.wait(...);
//   }
#pragma once

#include "base/clock.h"

namespace tandem {

class IdleSpin {
 public:
  // Not allowed where the threads of a role outnumber its CPUs: spinning would take the CPU from the one that
  // is waited for.
  explicit IdleSpin(bool allowed = false) : allowed_(allowed) {}

  // Something came: what follows it is looked for.
  void found() {
    if (state_ == State::spinning) penalty_ = skips_ = 0;
    state_ = State::over;
    if (!allowed_) return;
    if (skips_ == 0) {
      state_ = State::fresh;
    } else {
      --skips_;
    }
  }

  // Nothing came: true while looking again is worth it, after a short rest of the CPU.
  bool again() {
    if (state_ == State::over) return false;
    if (state_ == State::fresh) {
      state_ = State::spinning;
      until_ = now() + kLimit;
    } else if (now() >= until_) {
      state_ = State::over;
      penalty_ = penalty_ < kMaxSkips ? 2 * penalty_ + 1 : kMaxSkips;
      skips_ = penalty_;
      return false;
    }
    __builtin_ia32_pause();
    return true;
  }

 private:
  // Twice a wake-up (20 us on bare metal, 40 to 50 in virtual machines): a wait that ends within it would
  // have paid as much for sleeping, a longer one has lost little. It spans the copy of a large tile on the
  // other side.
  static constexpr Duration kLimit = std::chrono::microseconds(100);
  // After spinning in vain as many messages are slept for, and twice as many after the next time: where waits
  // are long, or where the one that is waited for lacks a CPU, at most one wait in so many spins.
  static constexpr int kMaxSkips = 63;
  enum class State { over, fresh, spinning };

  bool allowed_;
  State state_ = State::over;  // a thread that was woken by nothing (a heartbeat) sleeps again at once
  Instant until_;
  int penalty_ = 0;  // messages slept for after the last spin in vain
  int skips_ = 0;    // of these, how many are left
};

}  // namespace tandem
