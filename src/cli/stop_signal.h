// StopSignal: SIGINT and SIGTERM as something to wait for. Create one before any other thread starts: they
// inherit the blocked signals. A second signal ends the process at once.
#pragma once

#include "base/clock.h"

namespace tandem {

class StopSignal {
 public:
  StopSignal();
  // True when a signal has come; waits at most `limit`.
  bool wait(Duration limit);
  // After this the next signal has its usual effect, for the user who does not want to wait for a drain.
  void release();
};

}  // namespace tandem
