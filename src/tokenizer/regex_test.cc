#include "tokenizer/regex.h"

#include <gtest/gtest.h>

#include <random>

#include "tokenizer/unicode.h"

namespace tandem {
namespace {

constexpr const char* kLlama3 =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "
    "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|"
    "\\s+(?!\\S)|\\s+";

std::u32string decode(std::string_view text) {
  std::u32string out;
  for (size_t offset = 0; offset < text.size();) out += next_codepoint(text, offset);
  return out;
}

// All matches, each as UTF-8, joined by "|".
std::string matches(const std::string& pattern, std::string_view text) {
  const auto regex = Regex::compile(pattern);
  if (!regex) return regex.error().message;
  const std::u32string characters = decode(text);
  RegexSearch search(*regex);
  search.reset(characters);
  std::string out;
  for (size_t at = 0;;) {
    const auto match = search.find(at);
    if (!match) return match.error().message;
    if (!match->found) break;
    if (!out.empty()) out += '|';
    for (size_t i = match->begin; i < match->end; ++i) append_utf8(out, characters[i]);
    at = match->end;
  }
  return out;
}

TEST(Regex, MatchesLeftmostAndInOrder) {
  EXPECT_EQ(matches("ab|abc", "abcab"), "ab|ab");
  EXPECT_EQ(matches("a{2,3}", "aaaaaaa"), "aaa|aaa");
  EXPECT_EQ(matches("a{2,3}b", "aaaab"), "aaab");
  EXPECT_EQ(matches("(?:ab){1,2}c", "abababc"), "ababc");
  EXPECT_EQ(matches("(?:ab|c)+d", "xabcabd"), "abcabd");
  EXPECT_EQ(matches("a++b", "aaab"), "aaab");
  EXPECT_EQ(matches("a++ab", "aaab"), "");
  EXPECT_EQ(matches("[ab]*[bc]*d", "bbbbcd"), "bbbbcd");
  EXPECT_EQ(matches(".", "a\n\r"), "a|\r");
}

TEST(Regex, ReadsClasses) {
  EXPECT_EQ(matches("[a-c\\-x\\]]+", "ab-]xd"), "ab-]x");
  EXPECT_EQ(matches("[^\\s\\p{L}]+", "a1 b#$"), "1|#$");
  EXPECT_EQ(matches("[\\p{L}&&[^a-c]]+", "abcxyz"), "xyz");
  EXPECT_EQ(matches("[a-d&&c-f]+", "abcdef"), "cd");
  EXPECT_EQ(matches("\\p{^L}+", "a12b"), "12");
  EXPECT_EQ(matches("[\\p{Han}]+", "a漢字か"), "漢字");
  EXPECT_EQ(matches("[\\x{1F600}-\\x{1F64F}]+", "a😀😁b"), "😀😁");
}

TEST(Regex, LooksAheadAndSeesTheEnd) {
  EXPECT_EQ(matches("\\s+(?!\\S)|\\s+", "a   b"), "  | ");
  EXPECT_EQ(matches("a(?=b|c)", "abacad"), "a|a");
  EXPECT_EQ(matches("\\s+$", "a  \n b  "), "  |  ");  // `$` also stands before a newline
}

// The pieces that the reference makes of these, by the pattern of Llama 3.
TEST(Regex, SpeaksTheReferencesDialect) {
  EXPECT_EQ(matches(kLlama3, "a\n\xC2\x85\nb"), "a|\n\xC2\x85\n|b");
  EXPECT_EQ(matches(kLlama3,
                    "a\xE2\x80\xA8\xE2\x80\xA8"
                    "b"),
            "a|\xE2\x80\xA8|\xE2\x80\xA8"
            "b");
  EXPECT_EQ(matches(kLlama3,
                    "a\xC2\x85\xC2\x85"
                    "b"),
            "a|\xC2\x85|\xC2\x85"
            "b");
  EXPECT_EQ(matches(kLlama3, "a\u180E\u180Eb"), "a|\u180E\u180E|b");
  EXPECT_EQ(matches(kLlama3, "a\u200B\u200Bb"), "a|\u200B\u200B|b");
  EXPECT_EQ(matches(kLlama3,
                    "a\x1C\x1C"
                    "b"),
            "a|\x1C\x1C|b");
  EXPECT_EQ(matches(kLlama3, "'ſa"), "'ſ|a");
  EXPECT_EQ(matches(kLlama3, "½¾"), "½¾");
  EXPECT_EQ(matches(kLlama3, "12345"), "123|45");
  EXPECT_EQ(matches(kLlama3, "I'LL go"), "I|'LL| go");
}

TEST(Regex, RefusesByName) {
  const auto message = [](const std::string& pattern) {
    const auto regex = Regex::compile(pattern);
    return regex ? std::string("accepted") : regex.error().message;
  };
  EXPECT_NE(message("a+?").find("lazy repetition"), std::string::npos);
  EXPECT_NE(message("(?<=a)b").find("lookbehind"), std::string::npos);
  EXPECT_NE(message("\\bword").find("\\b"), std::string::npos);
  EXPECT_NE(message("(a)\\1").find("\\1"), std::string::npos);
  EXPECT_NE(message("\\p{Greek}").find("Greek"), std::string::npos);
  EXPECT_NE(message("[[:alpha:]]").find("POSIX"), std::string::npos);
  EXPECT_NE(message("a*").find("empty string"), std::string::npos);
  EXPECT_NE(message("(?i:ss)").find("ss"), std::string::npos);
  EXPECT_NE(message("(?i:ä)").find("ASCII"), std::string::npos);
  EXPECT_NE(message("[a").find("without"), std::string::npos);
  EXPECT_NE(message("a)").find("without"), std::string::npos);
  EXPECT_NE(message("(?:(?:){1000}){1000}a").find("empty"), std::string::npos);
  EXPECT_NE(message("(?:(?:a{1000}b){1000}){1000}").find("4096"), std::string::npos);
  EXPECT_NE(message(std::string(1000, '(')).find("nesting"), std::string::npos);
  EXPECT_NE(message(std::string(1000, '[')).find("nesting"), std::string::npos);
}

// Runs that fail at every start must not be walked again from every start.
TEST(Regex, StaysLinearOnLongRuns) {
  const std::string spaces(300'000, ' ');
  EXPECT_EQ(matches("\\s+$", spaces + "x"), "");
  EXPECT_EQ(matches("\\s*[\\r\\n]+", spaces + "x"), "");
  EXPECT_EQ(matches("[ab]*[bc]*d", std::string(300'000, 'b')), "");
  EXPECT_EQ(matches("\\s+$", spaces), spaces);
}

TEST(Regex, StopsWhatIsNotLinear) {
  const std::string message = matches("(?:a|aa)+b", std::string(2000, 'a'));
  EXPECT_NE(message.find("steps a character"), std::string::npos);
}

TEST(Regex, SurvivesMutatedPatterns) {
  std::mt19937 random(1);
  const std::string alphabet = "()[]{}?*+|\\^$&-.:i!=pLN{1,3}ab ";
  const std::u32string text = decode("ab 12 it's a tést\n\n  x");
  for (int round = 0; round < 2'000; ++round) {
    std::string pattern = kLlama3;
    for (int edits = 1 + static_cast<int>(random() % 6); edits > 0; --edits) {
      const size_t at = random() % pattern.size();
      if (random() % 2 == 0) {
        pattern[at] = alphabet[random() % alphabet.size()];
      } else {
        pattern.erase(at, 1 + random() % 5);
      }
      if (pattern.empty()) pattern.push_back('a');
    }
    const auto regex = Regex::compile(pattern);
    if (!regex) continue;
    RegexSearch search(*regex);
    search.reset(text);
    for (size_t at = 0; at < text.size();) {
      const auto match = search.find(at);
      if (!match || !match->found) break;
      ASSERT_GT(match->end, at) << pattern;
      at = match->end;
    }
  }
}

}  // namespace
}  // namespace tandem
