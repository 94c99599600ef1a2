// WorkerPool: threads that run posted tasks in order of arrival, so that the I/O thread never waits. With one
// thread it is a serial executor: its tasks never overlap. Any thread may post.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace tandem {

class WorkerPool {
 public:
  // `max_waiting`: tasks that may wait before try_post refuses. `name`: of the threads, at most 15 letters.
  WorkerPool(int threads, size_t max_waiting, const std::string& name);
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  // False when too many tasks wait, or after stop(); the task is then untouched by any thread.
  bool try_post(std::function<void()> task);
  // Without the limit, for what has been admitted already. Dropped after stop().
  void post(std::function<void()> task);
  // Runs what waits, then joins. May be called twice; not from a task.
  void stop();

 private:
  void run();
  bool enqueue(std::function<void()> task, size_t limit);

  const size_t max_waiting_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> tasks_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace tandem
