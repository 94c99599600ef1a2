// Answers in harmony notation, of a vocabulary in which marks are control tokens, and text can be any bytes.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "grammar/grammar_testing.h"
#include "grammar/token_grammar.h"
#include "grammar/tool_call_grammar.h"

namespace tandem {
namespace {

constexpr const char* kMarks[] = {"<|start|>", "<|channel|>", "<|constrain|>", "<|message|>",
                                  "<|end|>",   "<|call|>",    "<|return|>"};

// Marks in the text stand for their tokens, but behind a backslash, where they are letters.
std::string with_tokens(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool is_plain = text[i] == '\\';
    i += is_plain ? 1 : 0;
    if (!is_plain) {
      for (const std::string mark : kMarks) {
        if (text.compare(i, mark.size(), mark) == 0) out += kControlTokenByte;
      }
    }
    out += text[i];
  }
  return out;
}

// Two tools, the first strict.
std::string form(const std::string& more) {
  return R"({"format": "harmony", "tools": [
    {"name": "weather", "strict": true, "parameters": {"type": "object", "properties": {
      "city": {"type": "string"}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
      "required": ["city"], "additionalProperties": false}},
    {"name": "now"}])" +
         more + "}";
}

Read read(const std::string& form_json, const std::string& text) {
  const auto rules = tool_call_grammar(form_json);
  EXPECT_TRUE(rules.has_value()) << rules.error().message;
  return rules ? read_text(*rules, with_tokens(text)) : Read::no;
}

const std::string kThought =
    "<|channel|>analysis<|message|>2 < 3, f <| x, <|<|a größer <<||<<|end|><|start|>assistant";
const std::string kSaid = "<|channel|>commentary<|message|>Let me see.<|end|><|start|>assistant";

std::string call(const std::string& name, const std::string& arguments,
                 const std::string& type = " <|constrain|>json") {
  return "<|channel|>commentary to=functions." + name + type + "<|message|>" + arguments;
}

TEST(HarmonyGrammar, RequiredCalls) {
  const std::string one = form(R"(, "required": true, "parallel": false)");
  const std::string good = call("weather", R"({"city": "Köln <|end", "days": 3})");
  EXPECT_EQ(read(one, good), Read::whole);
  EXPECT_EQ(read(one, good + "<|call|>"), Read::whole);
  EXPECT_EQ(read(one, kThought + good), Read::whole);
  EXPECT_EQ(read(one, call("now", R"({"anything": [1]})", "")), Read::whole) << "not strict: any object";
  for (const char* type : {"<|constrain|>json", " json", ""})
    EXPECT_EQ(read(one, call("weather", R"({"city": "a"})", type)), Read::whole) << type;
  EXPECT_EQ(read(one, " to=functions.now<|channel|>commentary <|constrain|>json<|message|>{}<|call|>"),
            Read::whole)
      << "the recipient behind the role";
  EXPECT_EQ(read(one, ""), Read::begun);
  EXPECT_EQ(read(one, kThought), Read::begun);
  EXPECT_EQ(read(one, kThought + kThought + good), Read::no) << "it need not end";
  EXPECT_EQ(read(one, kSaid), Read::no) << "calls alone";
  EXPECT_EQ(read(one, "<|channel|>final"), Read::no);
  EXPECT_EQ(read(one, good + "<|end|>"), Read::no);
  EXPECT_EQ(read(one, good + "<|call|><|start|>"), Read::no) << "one call";
  EXPECT_EQ(read(one, call("weather", "{}")), Read::no) << "city is required";
  EXPECT_EQ(read(one, call("weather", R"({"city": "a", "days": 12})")), Read::no);
  EXPECT_EQ(read(one, call("other", "{}")), Read::no);
  EXPECT_EQ(read(one, call("weathers", "{}")), Read::no);
  EXPECT_EQ(read(one, "\\" + good), Read::no) << "letters are no token";
  EXPECT_EQ(read(form(R"(, "required": true, "reasoning": false)"), kThought + good), Read::no);
}

TEST(HarmonyGrammar, SeveralCalls) {
  const std::string several = form(R"(, "required": true)");
  const std::string good = call("now", "{}");
  for (const char* end : {"<|call|>", "<|end|>"}) {
    const std::string two = good + end + "<|start|>assistant" + good;
    EXPECT_EQ(read(several, two), Read::whole);
    EXPECT_EQ(read(several, two + end + "<|start|>assistant" + good + "<|call|>"), Read::whole);
    EXPECT_EQ(read(several, good + end + "<|start|>assistant"), Read::begun);
    EXPECT_EQ(read(several, good + end + "<|start|>assistant<|channel|>final"), Read::no);
  }
}

TEST(HarmonyGrammar, TextOrCallsThatMayBeMade) {
  const std::string may = form("");
  const std::string final = "<|channel|>final<|message|>It rains.\n";
  for (const std::string& before : {std::string(), kThought, kSaid, kThought + kSaid + kThought}) {
    EXPECT_EQ(read(may, before + final), Read::whole) << before;
    EXPECT_EQ(read(may, before + call("now", "{}") + "<|call|>"), Read::whole) << before;
    EXPECT_EQ(read(may, before + call("weather", "{}")), Read::no) << before;
  }
  EXPECT_EQ(read(may, "<|channel|>final<|message|>"), Read::whole) << "no text is text";
  EXPECT_EQ(read(may, final + "<|end|>"), Read::no);
  EXPECT_EQ(read(may, "It rains."), Read::no);
  EXPECT_EQ(read(may, "<|channel|>thoughts"), Read::no);
}

TEST(HarmonyGrammar, AnswersOfAForm) {
  const std::string answer = R"(, "answer": {"kind": 2, "text": "{\"enum\": [\"yes\", \"no\"]}"})";
  const std::string alone = R"({"format": "harmony", "tools": [])" + answer + "}";
  for (const std::string& either : {alone, form(answer)}) {
    for (const char* type : {"", " <|constrain|>json"}) {
      const std::string yes = "<|channel|>final" + std::string(type) + "<|message|>\"yes\"";
      EXPECT_EQ(read(either, yes), Read::whole);
      EXPECT_EQ(read(either, kThought + yes), Read::whole);
      EXPECT_EQ(read(either, kSaid + yes), Read::no);
      EXPECT_EQ(read(either, yes + " "), Read::no);
    }
    EXPECT_EQ(read(either, "<|channel|>final<|message|>\"maybe\""), Read::no);
    EXPECT_EQ(read(either, "\"yes\""), Read::no);
  }
  EXPECT_EQ(read(form(answer), call("now", "{}")), Read::whole);
  EXPECT_EQ(read(alone, call("now", "{}")), Read::no);
  const std::string words = R"({"format": "harmony", "tools": [], "answer": {"kind": 5, "text": "[\"a\"]"}})";
  EXPECT_EQ(read(words, "<|channel|>final<|message|>a"), Read::whole);
  EXPECT_EQ(read(words, "<|channel|>final <|constrain|>json<|message|>a"), Read::no) << "it is no JSON";
}

TEST(HarmonyGrammar, RefusesByName) {
  const auto refused = [](const std::string& text) {
    const auto rules = tool_call_grammar(text);
    EXPECT_FALSE(rules.has_value());
    return rules ? "" : rules.error().message;
  };
  const std::string schema = refused(R"({"format": "harmony", "tools": [{"name": "f", "strict": true,
      "parameters": {"type": "object", "patternProperties": {"a": {}}}}]})");
  EXPECT_TRUE(schema.starts_with("the function f: ")) << schema;
  EXPECT_NE(refused(R"({"format": "harmony", "tools": []})").find("list of tools"), std::string::npos);
  EXPECT_NE(
      refused(R"({"format": "harmony", "tools": [], "answer": {"kind": 6, "text": "{}"}})").find("again"),
      std::string::npos);
}

// Marks are tokens: bytes that spell one lead nowhere, and a free text takes no mark but the one that ends
// it.
TEST(HarmonyGrammar, TokensOfAVocabulary) {
  std::vector<std::pair<std::string, int32_t>> tokens;
  for (int32_t byte = 0; byte < 255; ++byte)
    tokens.emplace_back(std::string(1, static_cast<char>(byte)), byte);
  std::map<std::string, int32_t> marks;
  int32_t id = 256;
  for (const std::string mark : kMarks) {
    tokens.emplace_back(kControlTokenByte + mark, id);
    marks[mark] = id++;
  }
  const auto trie = std::make_shared<const TokenTrie>(TokenTrie::build(std::move(tokens), 270));
  const auto grammar =
      TokenGrammar::compile(*tool_call_grammar(form(R"(, "required": true, "parallel": false)")), trie);
  ASSERT_TRUE(grammar.has_value()) << grammar.error().message;
  TokenGrammar::State state = (*grammar)->start();
  const auto allowed = [&] {
    std::vector<uint64_t> mask((*grammar)->mask_words());
    (*grammar)->allowed(state, mask);
    std::string out;
    for (const auto& [mark, token] : marks) {
      if ((mask[static_cast<size_t>(token) / 64] >> (token % 64) & 1) != 0) out += mark;
    }
    for (int32_t byte = 32; byte < 127; ++byte) {
      if ((mask[static_cast<size_t>(byte) / 64] >> (byte % 64) & 1) != 0) out += static_cast<char>(byte);
    }
    return out;
  };
  const auto say = [&](const std::string& text) {
    for (const char c : text) state = (*grammar)->advance(state, static_cast<unsigned char>(c));
    EXPECT_NE(state, TokenGrammar::kDead) << text;
  };
  EXPECT_EQ(allowed(), "<|channel|> ");
  state = (*grammar)->advance(state, marks["<|channel|>"]);
  EXPECT_EQ(allowed(), "ac");
  say("analysis");
  EXPECT_EQ(allowed(), "<|message|>");
  state = (*grammar)->advance(state, marks["<|message|>"]);
  EXPECT_EQ(allowed().size(), std::string("<|end|>").size() + 95);
  say("a <b <| c <<||");
  EXPECT_EQ(allowed().substr(0, 8), "<|end|> ") << "still inside";
  say("<|");
  const std::string behind = allowed();
  EXPECT_EQ(behind.size(), std::string("<|end|>").size() + 95 - 5) << "no mark by its letters";
  EXPECT_EQ(behind.find_first_of("scmr", 7), std::string::npos) << behind;
  state = (*grammar)->advance(state, marks["<|end|>"]);
  EXPECT_EQ(allowed(), "<|start|>");
  state = (*grammar)->advance(state, marks["<|start|>"]);
  say("assistant");
  state = (*grammar)->advance(state, marks["<|channel|>"]);
  EXPECT_EQ(allowed(), "c") << "it has reasoned";
  say("commentary to=functions.now");
  EXPECT_EQ(allowed(), "<|constrain|><|message|> ");
  state = (*grammar)->advance(state, marks["<|message|>"]);
  say("{}");
  EXPECT_EQ(allowed(), "<|call|>");
  EXPECT_TRUE((*grammar)->can_end(state));
  state = (*grammar)->advance(state, marks["<|call|>"]);
  EXPECT_TRUE((*grammar)->must_end(state));
}

}  // namespace
}  // namespace tandem
