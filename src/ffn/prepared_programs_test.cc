#include "ffn/prepared_programs.h"

#include <gtest/gtest.h>

#include "ffn/split_testing.h"

namespace tandem {
namespace {

using Verdict = PreparedPrograms::Verdict;

TEST(PreparedPrograms, AGroupReplaysOnAttentionsWordAlone) {
  split_testing::SplitModel model({});
  SplitSettings settings = model.settings();
  settings.graph = true;
  settings.capture_sizes = {8, 32};
  PreparedPrograms prepared = *PreparedPrograms::create(settings);
  struct Case {
    const char* rule;
    std::vector<uint32_t> words;
    uint32_t rows;
    Verdict verdict;
    uint32_t size;
  };
  const Case cases[] = {
      {"no word", {0}, 3, Verdict::eager, 0},
      {"a word", {8}, 3, Verdict::replay, 8},
      {"all rows", {8}, 8, Verdict::replay, 8},
      {"two clients share the smallest that holds both", {8, 8}, 9, Verdict::replay, 32},
      {"a larger word than the rows need", {32}, 3, Verdict::replay, 8},
      {"one tile without a word", {8, 0}, 9, Verdict::eager, 0},
      {"too many rows together", {32, 32}, 33, Verdict::miss, 0},
      {"a word of no program", {16}, 3, Verdict::miss, 0},
  };
  for (const Case& item : cases) {
    const auto choice = prepared.choose(item.words, item.rows);
    EXPECT_EQ(choice.verdict, item.verdict) << item.rule;
    EXPECT_EQ(choice.program == nullptr ? 0 : choice.program->size, item.size) << item.rule;
  }
  settings.graph = false;
  PreparedPrograms none = *PreparedPrograms::create(settings);
  EXPECT_EQ(none.choose(std::vector<uint32_t>{0}, 1).verdict, Verdict::eager);
}

}  // namespace
}  // namespace tandem
