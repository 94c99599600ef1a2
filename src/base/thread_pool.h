// ThreadPool: runs the tasks of one region at a time on a fixed set of threads, the caller being one of them.
// Tasks are handed out by one atomic counter. One thread (the owner) calls `run`; it returns when every task
// is done. It waits for workers that have begun a task, never for one to arrive. Idle workers spin for a
// bounded time and then sleep; they never spin when the pool is larger than the CPU budget.
#pragma once

#include <cstddef>
#include <memory>
#include <type_traits>

namespace tandem {

class ThreadPool {
 public:
  // `threads` counts the caller: 1 means that `run` executes in place.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return threads_; }

  // Calls body(task, worker) for each task in [0, tasks), in any order; worker is in [0, threads).
  template <class Body>
  void run(size_t tasks, Body&& body) {
    using Callable = std::remove_reference_t<Body>;
    run_region(
        tasks,
        [](void* context, size_t task, int worker) { (*static_cast<Callable*>(context))(task, worker); },
        const_cast<void*>(static_cast<const void*>(&body)));
  }

 private:
  using TaskFn = void (*)(void* context, size_t task, int worker);
  struct Shared;

  void run_region(size_t tasks, TaskFn fn, void* context);

  int threads_;
  std::unique_ptr<Shared> shared_;
};

}  // namespace tandem
