// ThreadPool: runs the tasks of one region at a time on a fixed set of threads, the caller being one of them.
// Tasks are handed out by one atomic counter. One thread (the owner) calls `run`; it returns when every task
// is done. It waits for workers that have begun a task, never for one to arrive. Idle workers spin for a
// bounded time and then sleep; they never spin when the pool is larger than the CPU budget.
//
// Where memory has several owners (NUMA nodes) workers belong to them too: each owner's tasks have a counter
// of their own, a worker begins with its owner's, and takes the others' when those are gone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <type_traits>
#include <vector>

#include "base/task_owners.h"

namespace tandem {

// Which owner each worker belongs to, and how its thread is bound there.
struct ThreadPlacement {
  std::vector<uint32_t> owner_of_worker;  // [threads]; empty: one owner
  std::function<void(int worker)> bind;   // called once on each worker's thread; may be empty
};

class ThreadPool {
 public:
  // `threads` counts the caller: 1 means that `run` executes in place.
  explicit ThreadPool(int threads, ThreadPlacement placement = {});
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return threads_; }

  // Binds the calling thread as worker 0: by a thread that will go on to call `run` and starts no others,
  // which would inherit it.
  void bind_caller() const;

  // Calls body(task, worker) for each task in [0, tasks), in any order; worker is in [0, threads).
  template <class Body>
  void run(size_t tasks, Body&& body) {
    run(TaskOwners::one(tasks), body);
  }
  // The same for tasks that have owners.
  template <class Body>
  void run(const TaskOwners& tasks, Body&& body) {
    using Callable = std::remove_reference_t<Body>;
    run_region(
        tasks,
        [](void* context, size_t task, int worker) { (*static_cast<Callable*>(context))(task, worker); },
        const_cast<void*>(static_cast<const void*>(&body)));
  }

 private:
  using TaskFn = void (*)(void* context, size_t task, int worker);
  struct Shared;

  void run_region(const TaskOwners& tasks, TaskFn fn, void* context);

  int threads_;
  std::unique_ptr<Shared> shared_;
};

}  // namespace tandem
