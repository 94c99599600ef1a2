#include "model/load_progress.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace tandem {
namespace {

size_t lines(const std::string& text) {
  return static_cast<size_t>(std::ranges::count(text, '\n'));
}

// The test's standard error is a file or a pipe: the log form.
std::string log_of(uint64_t total, bool show, const std::vector<uint64_t>& steps) {
  testing::internal::CaptureStderr();
  LoadProgress progress(total, show);
  for (const uint64_t step : steps) progress.add(step);
  progress.finish();
  return testing::internal::GetCapturedStderr();
}

TEST(LoadProgress, OneLineForEachTenth) {
  const std::string slow = log_of(1000, true, std::vector<uint64_t>(1000, 1));
  EXPECT_EQ(lines(slow), 10u) << slow;
  EXPECT_NE(slow.find("loading: 10 % of"), std::string::npos);
  EXPECT_NE(slow.find("loading: 100 % of"), std::string::npos);
  EXPECT_EQ(lines(log_of(7, true, {7})), 10u);
  EXPECT_EQ(lines(log_of(1000, true, {99, 0, 1, 450})), 5u);
  EXPECT_EQ(log_of(1000, false, {1000}), "");
}

}  // namespace
}  // namespace tandem
