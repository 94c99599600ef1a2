#include "model/load_progress.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string>

#include "base/log.h"
#include "base/memory_budget.h"

namespace tandem {
namespace {

constexpr uint64_t kBarSteps = 40;  // characters of the bar: with its figures it fits 80 columns

}  // namespace

LoadProgress::LoadProgress(uint64_t total, bool show)
    : total_(std::max<uint64_t>(total, 1)),
      show_(show),
      terminal_(isatty(STDERR_FILENO) == 1),
      start_(now()) {
  next_ = terminal_ ? 0 : (total_ + 9) / 10;
}

void LoadProgress::add(uint64_t bytes) {
  const uint64_t done = done_.fetch_add(bytes) + bytes;
  if (!show_ || done < next_.load()) return;
  std::lock_guard lock(mutex_);
  if (done < next_.load()) return;
  if (terminal_) {
    show_bar(done);
  } else {
    log_tenths(done);
  }
}

void LoadProgress::show_bar(uint64_t done) {
  const double share = std::min(1.0, static_cast<double>(done) / static_cast<double>(total_));
  const auto filled = static_cast<size_t>(share * kBarSteps);
  const std::string bar = std::string(filled, '#') + std::string(kBarSteps - filled, '.');
  const double seconds = seconds_since(start_);
  const std::string rate =
      seconds > 0.05 ? bytes_text(static_cast<uint64_t>(static_cast<double>(done) / seconds)) : "-";
  const std::string line = fmt::format("\rloading [{}] {:3.0f} %  {}/s    ", bar, share * 100, rate);
  std::fwrite(line.data(), 1, line.size(), stderr);
  next_ = done + std::max<uint64_t>(total_ / 200, 1);  // half a percent: at most 200 lines a load
}

void LoadProgress::log_tenths(uint64_t done) {
  // Several may be passed at once; each has its line, so that a log always shows ten.
  while (tenths_ < 10 && done >= (total_ * (tenths_ + 1) + 9) / 10) {
    ++tenths_;
    log_info(fmt::format("loading: {} % of {} after {:.1f} s", tenths_ * 10, bytes_text(total_),
                         seconds_since(start_)));
  }
  next_ = tenths_ < 10 ? (total_ * (tenths_ + 1) + 9) / 10 : UINT64_MAX;
}

void LoadProgress::finish() {
  if (!show_ || !terminal_) return;
  std::lock_guard lock(mutex_);
  show_bar(done_.load());
  std::fputc('\n', stderr);
}

}  // namespace tandem
