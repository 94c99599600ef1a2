#include "tokenizer/unicode.h"

#include <gtest/gtest.h>

#include "tokenizer/normalizer.h"

namespace tandem {
namespace {

TEST(Utf8, RoundTripsEveryCodepoint) {
  for (char32_t c = 0; c <= kMaxCodepoint; ++c) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    std::string text = "a";
    append_utf8(text, c);
    ASSERT_EQ(find_invalid_utf8(text), std::string_view::npos);
    size_t offset = 1;
    ASSERT_EQ(next_codepoint(text, offset), c);
    ASSERT_EQ(offset, text.size());
    ASSERT_EQ(previous_codepoint(text, offset), c);
    ASSERT_EQ(offset, 1u);
    for (size_t cut = 2; cut < text.size(); ++cut) {
      ASSERT_EQ(incomplete_utf8_suffix(text.substr(0, cut)), cut - 1);
    }
    ASSERT_EQ(incomplete_utf8_suffix(text), 0u);
  }
}

TEST(Utf8, FindsWhatIsIllFormed) {
  EXPECT_EQ(find_invalid_utf8("ab\xFFz"), 2u);
  EXPECT_EQ(find_invalid_utf8("\xC0\xAF"), 0u);          // overlong
  EXPECT_EQ(find_invalid_utf8("x\xED\xA0\x80"), 1u);     // surrogate
  EXPECT_EQ(find_invalid_utf8("\xF4\x90\x80\x80"), 0u);  // above U+10FFFF
  EXPECT_EQ(find_invalid_utf8("\xE2\x82"), 0u);
}

TEST(Utf8, ReplacesMaximalParts) {
  EXPECT_EQ(replace_invalid_utf8("\xE2\x82"
                                 "A"),
            "\uFFFDA");  // one for the two bytes
  EXPECT_EQ(replace_invalid_utf8("\xF0\x9F\x98"), "\uFFFD");
  EXPECT_EQ(replace_invalid_utf8("\x80\x80"), "\uFFFD\uFFFD");
  EXPECT_EQ(replace_invalid_utf8("\xED\xA0\x80"), "\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(replace_invalid_utf8("\xEC\x82\xBC"), "삼");
  EXPECT_EQ(incomplete_utf8_suffix("\xE0\x80"), 0u);  // can never become valid
}

TEST(Categories, AreThoseOfTheReference) {
  EXPECT_EQ(general_category(U'A'), Category::Lu);
  EXPECT_EQ(general_category(0x1E943), Category::Ll);
  EXPECT_EQ(general_category(0x0897), Category::Mn);  // Unicode 16
  EXPECT_EQ(general_category(0xD800), Category::Cn);
  EXPECT_EQ(general_category(0x10FFFF), Category::Cn);
  EXPECT_EQ(general_category(0x10FFFD), Category::Co);
  EXPECT_FALSE(is_white_space(0x180E));
  EXPECT_FALSE(is_white_space(0x1C));
  EXPECT_TRUE(is_white_space(0x85));
  EXPECT_TRUE(is_word(0x24B6));
  EXPECT_FALSE(is_word(U'-'));
}

TEST(Nfc, ComposesAsTheReferenceDoes) {
  EXPECT_EQ(normalize_nfc("e\u0301"), "\u00e9");
  EXPECT_EQ(normalize_nfc("\u1100\u1161\u11a8"), "\uac01");
  EXPECT_EQ(normalize_nfc("\u212a"), "K");
  EXPECT_EQ(normalize_nfc("<\u0338"), "\u226e");
  EXPECT_EQ(normalize_nfc("a\u0301\u0316"), "\u00e1\u0316");   // reordered, then composed
  EXPECT_EQ(normalize_nfc("a\u0345\u1ac0"), "a\u0345\u1ac0");  // U+1AC0 came after the reference's tables
  EXPECT_EQ(normalize_nfc("a\u0486\u1dfa"), "a\u0486\u1dfa");
  EXPECT_EQ(normalize_nfc("\U00011935\U00011930"), "\U00011935\U00011930");
  EXPECT_EQ(normalize_nfc("plain \u00e9"), "plain \u00e9");
}

TEST(Normalizer, HalvesJoinToTheWhole) {
  const Normalizer normalizer(
      {{NormalizerStep::Kind::prepend, "", "▁"}, {NormalizerStep::Kind::replace, " ", "▁"}});
  EXPECT_EQ(normalizer.apply("a b"), "▁a▁b");
  EXPECT_EQ(normalizer.apply(""), "");
  EXPECT_EQ(normalizer.prefix() + normalizer.apply_body("a ") + normalizer.apply_body("b"), "▁a▁b");
}

}  // namespace
}  // namespace tandem
