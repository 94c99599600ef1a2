#include "bench/bare_floor.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstring>

#include "base/clock.h"
#include "bench/two_cpus.h"

namespace tandem {
namespace {

constexpr size_t kPageBytes = 4096;
constexpr int kLooksPerClock = 1 << 16;
constexpr Duration kPatience = std::chrono::seconds(10);  // for a machine that runs something else

}  // namespace

struct BareFloor::Words {
  alignas(64) std::atomic<uint32_t> sent;      // number of the round whose message is in the slot
  alignas(64) std::atomic<uint32_t> answered;  // the same of the answer
};

BareFloor::Words& BareFloor::words(size_t message) const {
  return *reinterpret_cast<Words*>(base_ + message * sizeof(Words));
}

// Behind the words of all messages: the round after which the other process sleeps again.
std::atomic<uint32_t>& BareFloor::stop() const {
  return words(messages_).sent;
}

std::byte* BareFloor::slot(int direction, size_t message) const {
  const size_t begin = ((messages_ + 1) * sizeof(Words) + kPageBytes - 1) / kPageBytes * kPageBytes;
  return base_ + begin + (static_cast<size_t>(direction) * messages_ + message) * stride_;
}

Result<std::unique_ptr<BareFloor>> BareFloor::create(size_t messages, size_t bytes, int cpu) {
  const size_t stride = (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  const size_t total = 2 * messages * stride + (messages + 1) * sizeof(Words) + kPageBytes;
  void* base = mmap(nullptr, total, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (base == MAP_FAILED) return make_error(ErrorCode::resource_exhausted, "no memory for the bare floor");
  std::unique_ptr<BareFloor> floor(new BareFloor(static_cast<std::byte*>(base), total, messages, stride));
  int fds[2];
  if (pipe2(fds, O_CLOEXEC) != 0)
    return make_error(ErrorCode::resource_exhausted, "no pipe for the bare floor");
  const UniqueFd reader(fds[0]);
  floor->orders_ = UniqueFd(fds[1]);
  floor->process_ = fork();
  if (floor->process_ < 0) return make_error(ErrorCode::resource_exhausted, "no process for the bare floor");
  if (floor->process_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // it may be spinning
    floor->orders_.reset();
    stay_on_cpu(cpu);
    floor->serve(reader.get());
  }
  return floor;
}

BareFloor::~BareFloor() {
  orders_.reset();
  if (process_ > 0) {
    kill(process_, SIGKILL);
    waitpid(process_, nullptr, 0);
  }
  munmap(base_, total_);
}

void BareFloor::serve(int orders) {
  Order order;
  while (read(orders, &order, sizeof(order)) == static_cast<ssize_t>(sizeof(order))) {
    for (;;) {
      const uint32_t next = round_ + 1;
      while (words(0).sent.load(std::memory_order_acquire) != next && stop().load() != next) {
        __builtin_ia32_pause();
      }
      if (stop().load() == next) {
        stop().store(next - 1);  // taken note of; `begin` waits for it
        break;
      }
      round_ = next;
      for (size_t i = 0; i < order.messages; ++i) {
        while (words(i).sent.load(std::memory_order_acquire) != round_) __builtin_ia32_pause();
        std::memcpy(slot(1, i), slot(0, i), order.bytes);
        words(i).answered.store(round_, std::memory_order_release);
      }
    }
  }
  _exit(0);
}

Result<void> BareFloor::begin(size_t messages, size_t bytes) {
  order_ = {messages, bytes};
  for (const Instant deadline = now() + kPatience; stop().load() == round_ + 1 && now() < deadline;)
    usleep(50);
  if (write(orders_.get(), &order_, sizeof(order_)) == static_cast<ssize_t>(sizeof(order_))) return {};
  return make_error(ErrorCode::unavailable, "the process of the bare floor has ended");
}

void BareFloor::end() {
  stop().store(round_ + 1);
}

Result<void> BareFloor::round_trip(std::span<const std::byte> source, std::span<std::byte> target) {
  ++round_;
  for (size_t i = 0; i < order_.messages; ++i) {
    std::memcpy(slot(0, i), source.data(), order_.bytes);
    words(i).sent.store(round_, std::memory_order_release);
  }
  for (size_t i = 0; i < order_.messages; ++i) {
    Instant deadline;
    for (int looks = 0; words(i).answered.load(std::memory_order_acquire) != round_;) {
      __builtin_ia32_pause();
      if (++looks % kLooksPerClock != 0) continue;
      if (deadline == Instant{}) deadline = now() + kPatience;
      if (now() > deadline) return make_error(ErrorCode::unavailable, "the bare floor does not answer");
    }
    std::memcpy(target.data(), slot(1, i), order_.bytes);
  }
  return {};
}

}  // namespace tandem
