// Two outputs of `eval gsm8k` question by question: where they agree, and whether one is better than chance
// explains. Values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace tandem {

struct AnswerComparison {
  std::string names[2];
  // Questions that both have answered, by who is right (the "####" line).
  uint64_t both = 0, only_first = 0, only_second = 0, neither = 0;
  uint64_t same_text = 0;
  uint64_t only_in_first = 0, only_in_second = 0;     // questions that the other file has not
  std::vector<uint64_t> first_better, second_better;  // indices

  uint64_t questions() const { return both + only_first + only_second + neither; }
  double p_value() const;
  std::string text() const;
  std::string json() const;
};

// McNemar's exact test (two-sided binomial): how likely it is that `first` and `second` discordant answers,
// or less even ones, come from two answerers that are equally good. 1 without any.
double mcnemar_p(uint64_t first, uint64_t second);

// Reads both files. Refused with file and line: what is not an answer, an index twice, another question under
// the same index; and files without a question in common. Answers of failed requests count as wrong.
Result<AnswerComparison> compare_answers(const std::string& first, const std::string& second);

}  // namespace tandem
