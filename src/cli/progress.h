// Progress: how far a long run has come, on standard error: a bar on a terminal, a line each tenth in a log.
// One thread.
#pragma once

#include <cstdint>
#include <string>

#include "base/clock.h"

namespace tandem {

class Progress {
 public:
  // `total` 0: nobody knows; a log then gets a line each ten seconds.
  Progress(std::string what, uint64_t total);
  ~Progress();  // ends the line of the bar
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // `note`: more to say, "3 failed"; may be empty.
  void show(uint64_t done, const std::string& note = "");

 private:
  std::string what_;
  uint64_t total_;
  bool is_terminal_;
  bool line_open_ = false;
  uint64_t lines_ = 0;  // of a log: tenths, or tens of seconds, that have been told
  Instant start_ = now();
  Instant last_{};
};

}  // namespace tandem
