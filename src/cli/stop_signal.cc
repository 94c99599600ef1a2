#include "cli/stop_signal.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <utility>

namespace tandem {
namespace {

// What a shell reports for a process that SIGINT has ended.
constexpr int kExitInterrupted = 130;

std::atomic<bool> stop_requested{false};

sigset_t stop_signals(bool takes_hangup) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGUSR1);
  if (takes_hangup) sigaddset(&set, SIGHUP);
  return set;
}

}  // namespace

const std::atomic<bool>& StopSignal::requested() {
  return stop_requested;
}

StopSignal::StopSignal(bool takes_hangup) : takes_hangup_(takes_hangup) {
  const sigset_t set = stop_signals(takes_hangup);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  // Under nohup it is ignored, and one that is ignored would never be seen.
  if (takes_hangup) ::signal(SIGHUP, SIG_DFL);
  thread_ = std::thread([this] { loop(); });
}

StopSignal::~StopSignal() {
  ending_.store(true);
  // Every thread blocks it, and this one takes it with sigwait:
  // NOLINTNEXTLINE(bugprone-bad-signal-to-kill-thread)
  pthread_kill(thread_.native_handle(), SIGTERM);
  thread_.join();
}

void StopSignal::loop() {
  pthread_setname_np(pthread_self(), "tandem-signal");
  const sigset_t set = stop_signals(takes_hangup_);
  while (true) {
    int signal = 0;
    sigwait(&set, &signal);
    if (ending_.load()) return;
    if (signal == SIGHUP) {
      hung_up_.store(true);
      continue;
    }
    if (signal == SIGUSR1) {
      const std::lock_guard lock(mutex_);
      if (report_) report_();
      continue;
    }
    if (stop_requested.exchange(true)) ::_exit(kExitInterrupted);
    {
      const std::lock_guard lock(mutex_);  // whoever is about to wait has looked at the flag, or will see it
    }
    changed_.notify_all();
  }
}

void StopSignal::on_report(std::function<void()> report) {
  const std::lock_guard lock(mutex_);
  report_ = std::move(report);
}

void StopSignal::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [] { return stop_requested.load(); });
}

bool StopSignal::wait_for(Duration limit) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, limit, [] { return stop_requested.load(); });
}

}  // namespace tandem
