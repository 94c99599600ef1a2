#include "base/thread_pool.h"

#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/cpu_budget.h"
#include "base/region_time.h"

namespace tandem {
namespace {

// A step has a few hundred regions some tens of microseconds apart: a worker that slept between them would
// pay a wake-up (about 50 us) for each. Longer pauses are between steps, where sleeping is right.
constexpr auto kSpin = std::chrono::microseconds(60);

void relax() {
  __builtin_ia32_pause();
}

}  // namespace

// A region is open while tasks are left. A worker that comes while it is open enters and is waited for; one
// that comes later (because the machine gave its CPU to somebody else) is not. So a region is never slower
// than its caller alone.
struct ThreadPool::Shared {
  // Of `region`: the number of the region in the upper half, whether it is open, and how many workers are
  // inside.
  static constexpr uint64_t kNumber = uint64_t{1} << 32;
  static constexpr uint64_t kOpen = uint64_t{1} << 31;
  static constexpr uint64_t kInside = kOpen - 1;

  std::vector<std::thread> workers;
  bool may_spin = false;

  std::atomic<uint64_t> region{0};
  std::atomic<bool> stop{false};

  std::mutex mutex;
  std::condition_variable wake;
  std::atomic<int> sleepers{0};

  // Written while no worker is inside and the region is closed.
  TaskFn fn = nullptr;
  void* context = nullptr;
  TaskOwners tasks;
  // Each on a line of its own: owners are far from each other.
  struct alignas(64) Counter {
    std::atomic<size_t> next{0};
  };
  std::array<Counter, kMaxOwners> counters;

  ThreadPlacement placement;

  uint32_t owner_of(int worker) const {
    const std::vector<uint32_t>& owners = placement.owner_of_worker;
    return owners.empty() ? 0 : owners[static_cast<size_t>(worker)];
  }
  void bind(int worker) const {
    if (placement.bind) placement.bind(worker);
  }

  void work(int worker) {
    const uint32_t first = owner_of(worker) % tasks.count;
    for (uint32_t i = 0; i < tasks.count; ++i) {
      const uint32_t owner = (first + i) % tasks.count;
      std::atomic<size_t>& next = counters[owner].next;
      const size_t end = tasks.ends[owner];
      for (size_t task = next.fetch_add(1); task < end; task = next.fetch_add(1)) fn(context, task, worker);
    }
  }

  static bool is_new(uint64_t state, uint64_t seen) { return (state / kNumber) != seen; }

  // Waits for a region other than number `seen`; false when the pool stops.
  bool wait_for_region(uint64_t seen) {
    if (may_spin) {
      const Instant start = now();
      while (!is_new(region.load(), seen) && !stop.load() && now() - start < kSpin) {
        for (int i = 0; i < 16; ++i) relax();
      }
    }
    if (!is_new(region.load(), seen) && !stop.load()) {
      std::unique_lock lock(mutex);
      // Counted before the condition is looked at: either we see the new region, or its owner sees us and
      // notifies.
      sleepers.fetch_add(1);
      wake.wait(lock, [&] { return stop.load() || is_new(region.load(), seen); });
      sleepers.fetch_sub(1);
    }
    return !stop.load();
  }

  bool enter() {
    uint64_t state = region.load();
    while ((state & kOpen) != 0) {
      if (region.compare_exchange_weak(state, state + 1)) return true;
    }
    return false;
  }

  void loop(int worker) {
    uint64_t seen = 0;
    while (wait_for_region(seen)) {
      seen = region.load() / kNumber;
      if (!enter()) continue;
      work(worker);
      region.fetch_sub(1);
    }
  }

  void open() {
    region.store((region.load() / kNumber + 1) * kNumber | kOpen);
    if (sleepers.load() == 0) return;
    {
      std::lock_guard lock(mutex);
    }  // a sleeper that has not seen the region is past its look at it
    wake.notify_all();
  }

  void close() {
    if ((region.fetch_and(~kOpen) & kInside) == 0) return;
    const Instant start = now();
    for (int spins = 0; (region.load() & kInside) != 0; ++spins) {
      // With fewer CPUs than threads the worker we wait for needs this one.
      if (may_spin && spins < 2000) {
        relax();
      } else {
        std::this_thread::yield();
      }
    }
    detail::join_time += now() - start;
  }
};

ThreadPool::ThreadPool(int threads, ThreadPlacement placement)
    : threads_(std::max(1, threads)), shared_(std::make_unique<Shared>()) {
  shared_->placement = std::move(placement);
  shared_->may_spin = threads_ <= CpuBudget::detect().threads;
  for (int worker = 1; worker < threads_; ++worker) {
    shared_->workers.emplace_back([this, worker] {
      pthread_setname_np(pthread_self(), "tandem-worker");
      shared_->bind(worker);
      shared_->loop(worker);
    });
  }
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard lock(shared_->mutex);
    shared_->stop.store(true);
  }
  shared_->wake.notify_all();
  for (std::thread& worker : shared_->workers) worker.join();
}

void ThreadPool::bind_caller() const {
  shared_->bind(0);
}

void ThreadPool::run_region(const TaskOwners& tasks, TaskFn fn, void* context) {
  const RegionTimer timer;
  const size_t count = tasks.tasks();
  if (threads_ == 1 || count <= 1) {
    for (size_t task = 0; task < count; ++task) fn(context, task, 0);
    return;
  }
  Shared& shared = *shared_;
  shared.fn = fn;
  shared.context = context;
  shared.tasks = tasks;
  for (uint32_t owner = 0; owner < tasks.count; ++owner)
    shared.counters[owner].next.store(owner == 0 ? 0 : tasks.ends[owner - 1]);
  shared.open();
  shared.work(0);
  shared.close();
}

}  // namespace tandem
