// StopSignal: SIGINT and SIGTERM as something to wait for and to look at, SIGUSR1 as a wish for a report, and
// SIGHUP, where it is wanted, as one to read the settings again.
// Create one before any other thread starts: they inherit the blocked signals. A second signal ends the
// process at once, for the user who will not wait for a drain.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "base/clock.h"

namespace tandem {

class StopSignal {
 public:
  // `takes_hangup`: without it a SIGHUP ends the process, as that of a terminal which is closed should.
  explicit StopSignal(bool takes_hangup = false);
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  // Returns when a signal has come.
  void wait();
  // The same, but waits no longer than `limit`; false: none has come.
  bool wait_for(Duration limit);
  // Called at each SIGUSR1, on this object's thread; what it uses must outlive this object. Before it is set,
  // the signal does nothing.
  void on_report(std::function<void()> report);
  // Whether a SIGHUP has come since the last call. Any thread.
  bool take_hangup() { return hung_up_.exchange(false); }
  // Whether one has come, for what waits for something else meanwhile. False for ever in a process without a
  // StopSignal.
  static const std::atomic<bool>& requested();

 private:
  void loop();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::function<void()> report_;
  std::atomic<bool> ending_{false}, hung_up_{false};
  bool takes_hangup_;
  std::thread thread_;
};

}  // namespace tandem
