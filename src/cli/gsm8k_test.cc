#include "cli/gsm8k.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>

namespace tandem {
namespace {

TEST(Gsm8k, StrictNumbersAreNormalised) {
  EXPECT_EQ(strict_number("so 3+4=7\n#### 7"), "7");
  EXPECT_EQ(strict_number("#### 1,234,567"), "1234567");
  EXPECT_EQ(strict_number("#### $12.50."), "12.5");
  EXPECT_EQ(strict_number("#### -8"), "-8");
  EXPECT_EQ(strict_number("#### 18.00\n"), "18");
  EXPECT_EQ(strict_number("####  007"), "7");
  EXPECT_EQ(strict_number("#### 0"), "0");
  EXPECT_EQ(strict_number("#### 1\n#### 2"), "2");
  EXPECT_FALSE(strict_number("the answer is 7").has_value());
  EXPECT_FALSE(strict_number("#### seven").has_value());
  EXPECT_FALSE(strict_number("").has_value());
}

TEST(Gsm8k, FlexibleTakesTheLastNumber) {
  EXPECT_EQ(flexible_number("3 apples and 1,024 pears."), "1024");
  EXPECT_EQ(flexible_number("it is -5"), "-5");
  EXPECT_EQ(flexible_number("costs $3.50!"), "3.5");
  EXPECT_EQ(flexible_number("...7..."), "7");
  EXPECT_FALSE(flexible_number("none").has_value());
}

TEST(Gsm8k, WilsonIntervalMatchesKnownValues) {
  const Interval half = wilson_interval(50, 100);  // published: 0.4038 to 0.5962
  EXPECT_NEAR(half.low, 0.4038, 1e-4);
  EXPECT_NEAR(half.high, 0.5962, 1e-4);
  EXPECT_EQ(wilson_interval(0, 10).low, 0);
  EXPECT_NEAR(wilson_interval(10, 10).high, 1, 1e-12);
}

TEST(Gsm8k, DefectiveFilesAreRefusedWithTheirLine) {
  const auto load = [](const std::string& text) {
    const std::string path = testing::TempDir() + "tandem_gsm8k_test.jsonl";
    std::ofstream(path) << text;
    const auto result = load_gsm8k(path);
    std::remove(path.c_str());
    return result ? std::to_string(result->size()) : result.error().message.substr(path.size());
  };
  const std::string good = R"({"question": "q", "answer": "a\n#### 3"})";
  EXPECT_EQ(load(good + "\n\n" + good + "\n"), "2");
  EXPECT_EQ(load(good + "\n{\n"), " line 2: not a JSON object");
  EXPECT_EQ(load(R"({"question": "q"})"), " line 1: no text in 'answer'");
  EXPECT_EQ(load(R"({"question": "q", "answer": "3"})"), " line 1: the answer has no line '#### <number>'");
  EXPECT_EQ(load(""), " has no problems");
  EXPECT_EQ(load_gsm8k("/nonexistent").error().code, ErrorCode::not_found);
}

}  // namespace
}  // namespace tandem
