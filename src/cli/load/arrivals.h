// ArrivalSchedule: when the requests of a load are sent, in seconds from its beginning. Open loop: as a rate
// and a process say, whatever the server does. Without a rate (closed loop) every request is due at once, and
// only the number in flight holds it back. A value; one thread.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <random>
#include <string>

#include "base/result.h"

namespace tandem {

struct ArrivalOptions {
  double rate = std::numeric_limits<double>::infinity();  // requests a second; infinity: all are due at once
  // Poisson: gaps are gamma distributed with shape `burstiness` and mean 1 / rate. 1: a Poisson process;
  // below 1 burstier, above 1 more even. Constant: every gap is 1 / rate.
  bool is_constant = false;
  double burstiness = 1;
  uint64_t count = 0;  // requests; 0: as many as `seconds` has room for
  double seconds = 0;  // none is due after this; 0: no such limit
  uint64_t seed = 0;
};

class ArrivalSchedule {
 public:
  explicit ArrivalSchedule(const ArrivalOptions& options);
  // The time of the next request, ascending from 0; nothing: there are no more.
  std::optional<double> next();

 private:
  double gap();

  ArrivalOptions options_;
  std::mt19937_64 random_;
  std::gamma_distribution<double> gamma_;
  // With a count and no other limit the whole schedule is stretched so that it has the rate that was asked
  // for: what chance makes of a hundred gaps is off by a tenth.
  double stretch_ = 1;
  uint64_t given_ = 0;
  double at_ = 0;
};

// "inf", or a number above 0.
Result<double> parse_request_rate(const std::string& text);

}  // namespace tandem
