#include "serving/stop_checker.h"

#include <gtest/gtest.h>

#include <random>

namespace tandem {
namespace {

struct Cut {
  std::string text;
  bool stopped = false;
};

Cut run(const std::vector<std::string>& stops, const std::vector<std::string>& pieces) {
  StopChecker checker(stops);
  Cut cut;
  for (const std::string& piece : pieces) {
    if (checker.push(piece, cut.text)) {
      cut.stopped = true;
      break;
    }
  }
  checker.finish(cut.text);
  return cut;
}

// The definition, by looking at every end of the whole text.
Cut reference(const std::vector<std::string>& stops, const std::string& text) {
  for (size_t end = 1; end <= text.size(); ++end) {
    size_t longest = 0;
    for (const std::string& stop : stops) {
      if (std::string_view(text).substr(0, end).ends_with(stop)) longest = std::max(longest, stop.size());
    }
    if (longest != 0) return {text.substr(0, end - longest), true};
  }
  return {text, false};
}

std::vector<std::string> letters(const std::string& text) {
  std::vector<std::string> pieces;
  for (const char c : text) pieces.emplace_back(1, c);
  return pieces;
}

TEST(StopChecker, CutsAcrossTokenBorders) {
  EXPECT_EQ(run({"DEFGHIJ"}, {"ABCDE", "FGH", "IJ"}).text, "ABC");
  EXPECT_EQ(run({"DEFGHIJ"}, letters("ABCDEFGHIJ")).text, "ABC");
  EXPECT_EQ(run({"CDX", "EF"}, {"ABCDEFGHIJ"}).text, "ABCD");
  EXPECT_EQ(run({"CDX", "EF"}, {"ABC", "DE", "FGHIJ"}).text, "ABCD");
}

TEST(StopChecker, ReleasesTheTailAtTheEnd) {
  const Cut cut = run({"DEFX"}, {"ABC", "DEF"});
  EXPECT_EQ(cut.text, "ABCDEF");
  EXPECT_FALSE(cut.stopped);
}

TEST(StopChecker, HoldsOnlyAProperPrefixOfAStop) {
  StopChecker checker({"END", "\n\n"});
  std::string out;
  EXPECT_FALSE(checker.push("the E", out));
  EXPECT_EQ(out, "the ");
  EXPECT_FALSE(checker.push("N", out));
  EXPECT_EQ(out, "the ");
  EXPECT_FALSE(checker.push("X\n", out));
  EXPECT_EQ(out, "the ENX");
  EXPECT_EQ(checker.held(), 1u);
  EXPECT_FALSE(checker.push("a", out));
  EXPECT_EQ(out, "the ENX\na");
}

TEST(StopChecker, OfStopsThatEndTogetherTheLongestWins) {
  EXPECT_EQ(run({"C", "BC", "XBC"}, letters("ABCD")).text, "A");
}

TEST(StopChecker, NothingIsReleasedAfterAStop) {
  StopChecker checker({"."});
  std::string out;
  EXPECT_TRUE(checker.push("a.b", out));
  EXPECT_TRUE(checker.push("c", out));
  checker.finish(out);
  EXPECT_EQ(out, "a");
}

TEST(StopChecker, CharactersOfSeveralBytesStayWhole) {
  StopChecker checker({"é!"});
  std::string out;
  EXPECT_FALSE(checker.push("caf\u00e9", out));
  EXPECT_EQ(out, "caf");
  EXPECT_FALSE(checker.push("\u00e8", out));  // shares its first byte with the stop
  EXPECT_EQ(out, "caf\u00e9\u00e8");
}

TEST(StopChecker, AnyCuttingGivesTheReference) {
  std::mt19937 random(7);
  const auto word = [&](size_t low, size_t high) {
    std::string text(low + random() % (high - low + 1), 'a');
    for (char& c : text)
      c = static_cast<char>('a' + random() % 2);  // two letters: borders and overlaps abound
    return text;
  };
  for (int round = 0; round < 20000; ++round) {
    std::vector<std::string> stops;
    for (size_t i = 0; i < random() % 4; ++i) stops.push_back(word(1, 6));
    const std::string text = word(0, 24);
    std::vector<std::string> pieces;
    for (size_t at = 0; at < text.size();) {
      const size_t size = std::min<size_t>(text.size() - at, random() % 5);
      pieces.push_back(text.substr(at, size));
      at += size;
    }
    const Cut want = reference(stops, text), got = run(stops, pieces);
    ASSERT_EQ(got.text, want.text) << text;
    ASSERT_EQ(got.stopped, want.stopped) << text;
  }
}

}  // namespace
}  // namespace tandem
