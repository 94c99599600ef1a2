// Runs cases against an FFN rank and says what came. One thread.
#pragma once

#include <string>
#include <vector>

#include "cli/conformance/case.h"

namespace tandem::conformance {

struct RunOptions {
  HostPort peer;
  std::vector<std::string> only;  // names or patterns with *; none: all
  std::string model;              // a folder to compare results with; empty: none
  int threads = 0;                // for that; 0: what the CPU budget allows
  Duration patience = std::chrono::seconds(10);
  std::shared_ptr<const PeerSecurity> security = nullptr;  // how the rank knows its peers; null: not at all
};

enum class Outcome { ok, failed, skipped };

struct CaseResult {
  std::string name, expects;
  Outcome outcome = Outcome::ok;
  std::string message;  // failed: what was expected and what came; skipped: why
};

bool is_wanted(const std::string& name, const std::vector<std::string>& only);

// `each` is told of every result as it is there. Errors: the rank cannot be reached, is one of several, or
// does not say its settings; a pattern that no case has.
Result<std::vector<CaseResult>> run_cases(const RunOptions& options,
                                          const std::function<void(const CaseResult&)>& each);

}  // namespace tandem::conformance
