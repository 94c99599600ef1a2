// From a TimeProfile to lines that a reader asks for: one for each kind of operation. Any thread.
#pragma once

#include <string>
#include <vector>

#include "base/time_profile.h"

namespace tandem::bench {

struct ProfileLine {
  std::string operation;
  double seconds = 0;  // of one step
  double share = 0;    // of the step's time
  double calls = 0;    // of one step
};

// The kind of an operation from the names of its scopes, outermost first and joined by slashes:
// "attention.qkv" is of the projections, "moe.submit/router" is the router. Names that nobody foresaw are
// "other".
std::string operation_kind(const std::string& path);

// Kinds with the longest first; then what no operation covers ("between operations"). Over all of them,
// "(waiting for threads)": the part of the time in which the calling thread had no task left and waited for
// another one's. `seconds`: of all `steps`, `waited` among them.
std::vector<ProfileLine> profile_lines(const TimeProfile& profile, int steps, double seconds, double waited);

}  // namespace tandem::bench
