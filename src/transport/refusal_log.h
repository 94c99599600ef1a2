// RefusalLog: the lines about connections that were refused. Whoever can connect can cause one: a flood of
// them must neither fill the disk nor hold up the thread that serves others. The first of a second are
// written, the rest is counted. One thread.
#pragma once

#include <cstdint>
#include <string>

#include "base/clock.h"

namespace tandem {

class RefusalLog {
 public:
  void add(const std::string& line);

 private:
  Instant second_{};  // begin of the one that is counted
  uint64_t count_ = 0;
};

}  // namespace tandem
