// GSM8K's format: JSONL of question and answer, the last line of an answer being "#### <number>". Loading,
// extracting the number of an answer, and scoring.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace tandem {

struct Gsm8kProblem {
  std::string question;
  std::string answer;
  std::string number;  // normalised: "1234"
};

// Refused with file and line: text that is not JSON, a missing field, an answer without a number.
Result<std::vector<Gsm8kProblem>> load_gsm8k(const std::string& path);

// "#### 1,234." -> "1234": thousands separators, a leading + or $, a trailing point and zeros behind the
// point go. Nothing when the text has no such line.
std::optional<std::string> strict_number(std::string_view answer);
// The last number anywhere in the text, normalised.
std::optional<std::string> flexible_number(std::string_view answer);

struct Interval {
  double low = 0, high = 0;
};
// Wilson's 95 % interval of a share (Wilson 1927).
Interval wilson_interval(uint64_t hits, uint64_t total);

}  // namespace tandem
