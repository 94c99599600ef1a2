#include "attention/answer_form.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace tandem {
namespace {

constexpr int32_t kEnd = 256, kThink = 257, kThought = 258;

Result<std::shared_ptr<const TokenTrie>> bytes_as_tokens() {
  std::vector<std::pair<std::string, int32_t>> tokens;
  for (int32_t byte = 0; byte < 256; ++byte)
    tokens.emplace_back(std::string(1, static_cast<char>(byte)), byte);
  return std::make_shared<const TokenTrie>(TokenTrie::build(std::move(tokens), 259));
}

// The allowed tokens, controls in angle brackets.
std::string allowed(const AnswerForm& form) {
  std::vector<uint64_t> mask;
  form.allowed(std::vector<int32_t>{kEnd}, mask);
  std::string out;
  for (int32_t token = 0; token < static_cast<int32_t>(mask.size() * 64); ++token) {
    if ((mask[static_cast<size_t>(token) / 64] >> (token % 64) & 1) == 0) continue;
    out += token < 256 ? std::string(1, static_cast<char>(token)) : "<" + std::to_string(token) + ">";
  }
  return out;
}

TEST(AnswerForm, EndsAreAllowedWhereTheTextMayEnd) {
  GrammarCache cache(bytes_as_tokens);
  AnswerForm form = *cache.form({.kind = GrammarKind::regex, .text = "ab?|c"});
  EXPECT_FALSE(form.is_free());
  EXPECT_EQ(allowed(form), "ac");
  AnswerForm other = form;
  form.advance('a');
  EXPECT_EQ(allowed(form), "b<256>");
  EXPECT_FALSE(form.must_end());
  form.advance('b');
  EXPECT_TRUE(form.must_end());
  EXPECT_EQ(allowed(form), "<256>");
  other.advance('x');  // a draft that was none
  EXPECT_EQ(allowed(other), "");
  EXPECT_FALSE(other.must_end());
}

TEST(AnswerForm, ReasoningIsFree) {
  GrammarCache cache(bytes_as_tokens);
  GrammarSpec spec{.kind = GrammarKind::choice,
                   .text = R"(["yes"])",
                   .reasoning_begin = kThink,
                   .reasoning_end = kThought};
  AnswerForm form = *cache.form(spec);
  EXPECT_EQ(allowed(form), "y<257>");  // may think first
  form.advance(kThink);
  EXPECT_TRUE(form.is_free());
  form.advance('z');
  EXPECT_TRUE(form.is_free());
  EXPECT_FALSE(form.must_end());
  form.advance(kThought);
  EXPECT_EQ(allowed(form), "y");  // and then not again
  AnswerForm direct = *cache.form(spec);
  direct.advance('y');
  EXPECT_EQ(allowed(direct), "e");
  spec.in_reasoning = true;
  AnswerForm inside = *cache.form(spec);
  EXPECT_TRUE(inside.is_free());
  inside.advance(kThought);
  EXPECT_EQ(allowed(inside), "y");
}

// Where the form lets line breaks come first.
TEST(AnswerForm, ReasoningMayComeBehindLineBreaks) {
  GrammarCache cache(bytes_as_tokens);
  GrammarSpec spec{
      .kind = GrammarKind::regex, .text = "\\n{0,2}ab", .reasoning_begin = kThink, .reasoning_end = kThought};
  AnswerForm form = *cache.form(spec);
  form.advance('\n');
  EXPECT_EQ(allowed(form), "\na<257>");
  AnswerForm direct = form;
  form.advance(kThink);
  EXPECT_TRUE(form.is_free());
  form.advance(kThought);
  EXPECT_EQ(allowed(form), "\na") << "the form begins anew, and no second time";
  form.advance('\n');
  EXPECT_EQ(allowed(form), "\na");
  direct.advance('a');
  EXPECT_EQ(allowed(direct), "b") << "text has begun";
  spec.reasoning_begin = -1;
  AnswerForm never = *cache.form(spec);
  never.advance('\n');
  EXPECT_EQ(allowed(never), "\na");
}

TEST(AnswerForm, ReasoningEndsWhenItsBudgetIsUsed) {
  GrammarCache cache(bytes_as_tokens);
  GrammarSpec spec{.reasoning_begin = kThink, .reasoning_end = kThought, .reasoning_budget = 2};
  for (const bool has_form : {false, true}) {
    if (has_form) spec = {GrammarKind::choice, R"(["yes"])", kThink, kThought, false, 2};
    for (const bool in_reasoning : {false, true}) {
      spec.in_reasoning = in_reasoning;
      AnswerForm form = *cache.form(spec);
      if (!in_reasoning) {
        EXPECT_EQ(form.is_free(), !has_form);
        form.advance(kThink);
      }
      form.advance('a');
      EXPECT_TRUE(form.is_free());
      AnswerForm short_one = form;
      form.advance('b');
      EXPECT_FALSE(form.is_free());
      EXPECT_FALSE(form.must_end());
      EXPECT_EQ(allowed(form), "<258>") << "neither more reasoning nor an end";
      for (AnswerForm* each : {&form, &short_one}) {
        each->advance(kThought);
        EXPECT_EQ(each->is_free(), !has_form);
        if (has_form) {
          EXPECT_EQ(allowed(*each), "y");
        }
      }
    }
  }
  spec = {.reasoning_begin = kThink, .reasoning_end = kThought, .reasoning_budget = 0};
  AnswerForm none = *cache.form(spec);
  none.advance(kThink);
  EXPECT_EQ(allowed(none), "<258>");
  AnswerForm plain = *cache.form(spec);
  for (int i = 0; i < 5; ++i) plain.advance('a');  // an answer that does not reason
  EXPECT_TRUE(plain.is_free());
  EXPECT_FALSE(plain.must_end());
}

TEST(GrammarCache, RefusesWithoutAVocabularyAndPassesErrorsOn) {
  GrammarCache none(nullptr);
  EXPECT_TRUE(none.form({})->is_free());
  const GrammarSpec json{.kind = GrammarKind::json_object};
  EXPECT_NE(none.form(json).error().message.find("needs the model's tokenizer.json"), std::string::npos);
  GrammarCache broken([]() -> Result<std::shared_ptr<const TokenTrie>> {
    return make_error(ErrorCode::data_loss, "tokenizer.json: broken");
  });
  EXPECT_EQ(broken.form(json).error().message, "tokenizer.json: broken");
  GrammarCache cache(bytes_as_tokens);
  EXPECT_NE(cache.form({.kind = GrammarKind::regex, .text = "(a"}).error().message.find("missing"),
            std::string::npos);
}

TEST(GrammarCache, KeepsWhatIsUsed) {
  int loads = 0;
  GrammarCache cache([&] {
    ++loads;
    return bytes_as_tokens();
  });
  AnswerForm first = *cache.form({.kind = GrammarKind::regex, .text = "a"});
  for (int i = 0; i < 200; ++i) {
    const auto form = cache.form({.kind = GrammarKind::regex, .text = "b{" + std::to_string(i + 1) + "}"});
    EXPECT_EQ(allowed(*form), "b");
  }
  EXPECT_EQ(loads, 1);
  EXPECT_EQ(allowed(first), "a");  // out of the cache, and alive
}

}  // namespace
}  // namespace tandem
