#include "base/thread_pool.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/cpu_budget.h"

namespace tandem {
namespace {

// A step has a few hundred regions some tens of microseconds apart: a worker that slept between them would pay a
// wake-up (about 50 us) for each. Longer pauses are between steps, where sleeping is right.
constexpr auto kSpin = std::chrono::microseconds(60);

void relax() { __builtin_ia32_pause(); }

}  // namespace

struct ThreadPool::Shared {
  std::vector<std::thread> workers;
  bool may_spin = false;

  std::mutex mutex;
  std::condition_variable wake;
  std::atomic<uint64_t> region{0};  // even: none; incremented by two for each region
  std::atomic<bool> stop{false};

  TaskFn fn = nullptr;
  void* context = nullptr;
  size_t tasks = 0;
  std::atomic<size_t> next{0};
  std::atomic<int> inside{0};  // workers that still may touch this region

  void work(int worker) {
    for (size_t task = next.fetch_add(1); task < tasks; task = next.fetch_add(1)) fn(context, task, worker);
  }

  void loop(int worker) {
    uint64_t seen = 0;
    while (true) {
      uint64_t current = region.load(std::memory_order_acquire);
      if (current == seen && may_spin) {
        const Instant start = now();
        while ((current = region.load(std::memory_order_acquire)) == seen && !stop.load() && now() - start < kSpin) {
          for (int i = 0; i < 16; ++i) relax();
        }
      }
      if (current == seen) {
        std::unique_lock lock(mutex);
        wake.wait(lock, [&] { return stop.load() || region.load() != seen; });
        current = region.load();
      }
      if (stop.load()) return;
      seen = current;
      work(worker);
      inside.fetch_sub(1, std::memory_order_acq_rel);
    }
  }
};

ThreadPool::ThreadPool(int threads) : threads_(std::max(1, threads)), shared_(std::make_unique<Shared>()) {
  shared_->may_spin = threads_ <= CpuBudget::detect().threads;
  for (int worker = 1; worker < threads_; ++worker) {
    shared_->workers.emplace_back([this, worker] {
      pthread_setname_np(pthread_self(), "tandem-worker");
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

void ThreadPool::run_region(size_t tasks, TaskFn fn, void* context) {
  if (threads_ == 1 || tasks <= 1) {
    for (size_t task = 0; task < tasks; ++task) fn(context, task, 0);
    return;
  }
  Shared& shared = *shared_;
  shared.fn = fn;
  shared.context = context;
  shared.tasks = tasks;
  shared.next.store(0);
  // Every worker passes through every region, so that none can still read an old one when the next is written.
  shared.inside.store(threads_ - 1);
  {
    std::lock_guard lock(shared.mutex);
    shared.region.fetch_add(2, std::memory_order_release);
  }
  shared.wake.notify_all();
  shared.work(0);
  for (int spins = 0; shared.inside.load(std::memory_order_acquire) != 0; ++spins) {
    // With fewer CPUs than threads the worker we wait for needs this one.
    if (shared.may_spin && spins < 2000) {
      relax();
    } else {
      std::this_thread::yield();
    }
  }
}

}  // namespace tandem
