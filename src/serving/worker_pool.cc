#include "serving/worker_pool.h"

#include <pthread.h>

#include <cstdint>
#include <utility>

namespace tandem {

WorkerPool::WorkerPool(int threads, size_t max_waiting, const std::string& name) : max_waiting_(max_waiting) {
  for (int i = 0; i < threads; ++i) {
    threads_.emplace_back([this] { run(); });
    pthread_setname_np(threads_.back().native_handle(), name.c_str());
  }
}

WorkerPool::~WorkerPool() {
  stop();
}

bool WorkerPool::enqueue(std::function<void()> task, size_t limit) {
  {
    const std::lock_guard lock(mutex_);
    if (stopping_ || tasks_.size() >= limit) return false;
    tasks_.push_back(std::move(task));
  }
  wake_.notify_one();
  return true;
}

bool WorkerPool::try_post(std::function<void()> task) {
  return enqueue(std::move(task), max_waiting_);
}
void WorkerPool::post(std::function<void()> task) {
  enqueue(std::move(task), SIZE_MAX);
}

void WorkerPool::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

void WorkerPool::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [this] { return stopping_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    std::function<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    task();
    task = nullptr;  // what it captured may be large, or post when it is destroyed: not under the lock
    lock.lock();
  }
}

}  // namespace tandem
