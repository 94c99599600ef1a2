#include "cli/answer_comparison.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

namespace tandem {
namespace {

// scipy.stats.binomtest(min(b, c), b + c).pvalue
TEST(Mcnemar, IsTheTwoSidedBinomialTest) {
  EXPECT_EQ(mcnemar_p(0, 0), 1);
  EXPECT_EQ(mcnemar_p(4, 4), 1);
  EXPECT_NEAR(mcnemar_p(1, 0), 1, 1e-12);
  EXPECT_NEAR(mcnemar_p(0, 5), 0.0625, 1e-12);
  EXPECT_NEAR(mcnemar_p(10, 2), 0.03857421875, 1e-12);
  EXPECT_NEAR(mcnemar_p(2, 10), 0.03857421875, 1e-12);
  EXPECT_NEAR(mcnemar_p(40, 60), 0.05688793364098078, 1e-10);
}

class CompareAnswers : public ::testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& text) {
    paths_.push_back(testing::TempDir() + "tandem_compare_" + name);
    std::ofstream(paths_.back()) << text;
    return paths_.back();
  }
  ~CompareAnswers() override {
    for (const std::string& path : paths_) std::remove(path.c_str());
  }
  static std::string line(int index, bool correct, const std::string& answer,
                          const std::string& question = "") {
    return nlohmann::json{{"index", index},
                          {"question", question.empty() ? "q" + std::to_string(index) : question},
                          {"answer", answer},
                          {"correct", correct}}
               .dump() +
           "\n";
  }
  std::vector<std::string> paths_;
};

TEST_F(CompareAnswers, CountsByQuestionWhateverTheOrder) {
  const std::string a = write("a", line(0, true, "x") + line(1, true, "y") + line(2, false, "z") +
                                       line(3, false, "u") + line(9, true, "v"));
  const std::string b = write("b", line(3, false, "u") + line(2, true, "w") + line(1, false, "r") +
                                       line(0, true, "x") + line(4, true, "s"));
  const AnswerComparison compared = compare_answers(a, b).value();
  EXPECT_EQ(compared.both, 1u);
  EXPECT_EQ(compared.only_first, 1u);
  EXPECT_EQ(compared.only_second, 1u);
  EXPECT_EQ(compared.neither, 1u);
  EXPECT_EQ(compared.same_text, 2u);
  EXPECT_EQ(compared.only_in_first, 1u);
  EXPECT_EQ(compared.only_in_second, 1u);
  EXPECT_EQ(compared.first_better, std::vector<uint64_t>{1});
  EXPECT_EQ(compared.second_better, std::vector<uint64_t>{2});
  const nlohmann::json json = nlohmann::json::parse(compared.json());
  EXPECT_EQ(json["agreement"], 0.5);
  EXPECT_EQ(json["mcnemar_p"], 1.0);
  EXPECT_NE(compared.text().find("agree: 2 (50.0 %); word for word: 2 (50.0 %)"), std::string::npos)
      << compared.text();
}

TEST_F(CompareAnswers, RefusesWithFileAndLine) {
  const std::string good = write("good", line(0, true, "x"));
  const auto message = [&](const std::string& name, const std::string& text) {
    return compare_answers(good, write(name, text)).error().message;
  };
  const auto path = [](const std::string& name) { return testing::TempDir() + "tandem_compare_" + name; };
  const std::string once = line(0, true, "x"), not_one = ": not an answer of tandem eval gsm8k --output";
  EXPECT_EQ(message("text", once + "hello\n"), path("text") + " line 2" + not_one);
  EXPECT_EQ(message("field", "{\"index\": 0}\n"), path("field") + " line 1" + not_one);
  EXPECT_EQ(message("twice", once + once), path("twice") + " line 2: an index that was there before");
  EXPECT_EQ(
      message("other", line(0, true, "x", "else")),
      "question 0 of " + good + " is another one in " + path("other") + "; compare answers to the same data");
  EXPECT_EQ(message("apart", line(5, true, "x")),
            good + " and " + path("apart") + " have no question in common");
  EXPECT_EQ(message("empty", ""), path("empty") + " has no line");
  EXPECT_EQ(compare_answers(good, "/nonexistent").error().message, "cannot read /nonexistent");
}

}  // namespace
}  // namespace tandem
