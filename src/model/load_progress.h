// LoadProgress: how far loading is. A bar on a terminal, one log line every 10 % elsewhere, nothing when it
// is not shown. Any thread may add.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

#include "base/clock.h"

namespace tandem {

class LoadProgress {
 public:
  // `total` in the same unit as `add`: bytes.
  LoadProgress(uint64_t total, bool show);

  void add(uint64_t bytes);
  // After the last `add`: ends the bar's line.
  void finish();

 private:
  void show_bar(uint64_t done);
  void log_tenths(uint64_t done);

  const uint64_t total_;
  const bool show_, terminal_;
  const Instant start_;
  std::atomic<uint64_t> done_{0};
  std::atomic<uint64_t> next_{0};  // `done` at which there is something to print
  std::mutex mutex_;
  uint32_t tenths_ = 0;  // lines printed
};

}  // namespace tandem
