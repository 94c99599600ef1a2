// Doctor: looks at the machine and says what was found, what is missing and what to do about it.
#pragma once

#include <string>
#include <vector>

namespace tandem {

enum class FindingLevel { good, notice, problem };

struct Finding {
  std::string subject;  // "ISA", "threads", ...
  FindingLevel level = FindingLevel::good;
  std::string found;
  std::string advice;  // empty when all is well
};

// `port` and `host`: where the HTTP server would listen.
std::vector<Finding> examine_machine(const std::string& host, int port);

}  // namespace tandem
