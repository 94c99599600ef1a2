#include "cli/load/prompts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "cli/load/load_run.h"

namespace tandem {
namespace {

using Json = nlohmann::json;

std::shared_ptr<const Tokenizer> arith() {
  static const auto tokenizer = std::make_shared<const Tokenizer>(Tokenizer::load("models/arith").value());
  return tokenizer;
}

PromptOptions options(const std::string& input, const std::string& output = "8") {
  PromptOptions out;
  out.input = LengthDistribution::parse("in", input).value();
  out.output = LengthDistribution::parse("out", output).value();
  return out;
}

std::vector<int> ids(const PromptSource& source, uint64_t index, bool warmup = false) {
  return Json::parse(source.make(index, warmup).value().json).get<std::vector<int>>();
}

TEST(PromptSource, RandomTokensHaveTheLengthAndNoControlTokens) {
  const PromptSource source = PromptSource::create(options("20:40", "3:5"), arith()).value();
  std::set<size_t> lengths;
  for (uint64_t i = 0; i < 100; ++i) {
    const LoadPrompt prompt = source.make(i).value();
    const std::vector<int> drawn = ids(source, i);
    EXPECT_EQ(drawn.size(), prompt.input_units);
    lengths.insert(drawn.size());
    for (const int id : drawn) EXPECT_FALSE(arith()->is_control(id)) << id;
    EXPECT_GE(prompt.output_tokens, 3u);
    EXPECT_LE(prompt.output_tokens, 5u);
  }
  EXPECT_EQ(*lengths.begin(), 20u);
  EXPECT_EQ(*lengths.rbegin(), 40u);
}

TEST(PromptSource, ASeedGivesItsPromptsInWhateverOrder) {
  const PromptSource a = PromptSource::create(options("32"), arith()).value();
  const PromptSource b = PromptSource::create(options("32"), arith()).value();
  const std::vector<int> late = ids(a, 9);
  for (uint64_t i = 0; i < 10; ++i) EXPECT_EQ(ids(a, i), ids(b, i));
  EXPECT_EQ(ids(b, 9), late);
  EXPECT_NE(ids(a, 1), ids(a, 2));
  EXPECT_NE(ids(a, 1, /*warmup=*/true), ids(a, 1));
  PromptOptions other = options("32");
  other.seed = 1;
  EXPECT_NE(ids(PromptSource::create(other, arith()).value(), 1), ids(a, 1));
}

TEST(PromptSource, GroupsShareTheirPrefixAndNothingElse) {
  PromptOptions with = options("10");
  with.prefix_tokens = 30;
  with.num_prefixes = 3;
  const PromptSource source = PromptSource::create(with, arith()).value();
  const auto part = [&](uint64_t index, bool prefix) {
    std::vector<int> all = ids(source, index);
    EXPECT_EQ(all.size(), 40u);
    return prefix ? std::vector<int>(all.begin(), all.begin() + 30)
                  : std::vector<int>(all.begin() + 30, all.end());
  };
  EXPECT_EQ(part(0, true), part(3, true));
  EXPECT_EQ(part(1, true), part(7, true));
  EXPECT_NE(part(0, true), part(1, true));
  EXPECT_NE(part(0, false), part(3, false));
  EXPECT_EQ(ids(source, 0, true).size(), 40u);  // as long, but of no group
}

TEST(PromptSource, WordsWhereNoTokenizerIsKnown) {
  PromptOptions chat = options("6");
  const std::string text = Json::parse(PromptSource::create(chat, nullptr).value().make(0).value().json);
  EXPECT_EQ(std::ranges::count(text, ' '), 5);
  chat.is_chat = true;
  const Json messages = Json::parse(PromptSource::create(chat, nullptr).value().make(0).value().json);
  EXPECT_EQ(messages[0]["role"], "user");
  EXPECT_EQ(messages[0]["content"], text);
  EXPECT_FALSE(
      Json::parse(PromptSource::create(chat, arith()).value().make(0).value().json)[0]["content"].empty());
}

class DatasetFile : public ::testing::Test {
 protected:
  Result<PromptSource> read(const std::string& text, bool is_chat = false) {
    std::ofstream(path_) << text;
    PromptOptions with = options("1", "8");
    with.dataset_path = path_;
    with.is_chat = is_chat;
    return PromptSource::create(with, nullptr);
  }
  ~DatasetFile() override { std::remove(path_.c_str()); }
  std::string path_ = testing::TempDir() + "tandem_prompts_test.jsonl";
};

TEST_F(DatasetFile, LinesComeInOrderAndAgain) {
  const auto source = read(
      "{\"prompt\": \"a \\\"b\\\"\"}\n\n{\"prompt_ids\": [4, 5], \"output_tokens\": 3}\n{\"question\": "
      "\"q\", \"max_tokens\": 2}\n");
  ASSERT_TRUE(source) << source.error().message;
  EXPECT_EQ(source->lines(), 3u);
  EXPECT_EQ(source->make(0)->json, "\"a \\\"b\\\"\"");
  EXPECT_EQ(source->make(0)->output_tokens, 8u);
  EXPECT_EQ(source->make(4)->json, "[4,5]");
  EXPECT_EQ(source->make(4)->output_tokens, 3u);
  EXPECT_EQ(source->make(5)->output_tokens, 2u);
  const auto chat =
      read("{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}]}\n{\"question\": \"q\"}\n", true);
  EXPECT_EQ(chat->make(1)->json, R"([{"content":"q","role":"user"}])");
}

TEST_F(DatasetFile, RefusedWithFileAndLine) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"{\"prompt\": \"a\"}\n[1]\n", " line 2: not a JSON object"},
      {"{\"text\": \"a\"}\n", " line 1: none of prompt, prompt_ids, messages and question"},
      {"{\"prompt\": 3}\n", " line 1: prompt is not a text"},
      {"{\"prompt_ids\": [\"a\"]}\n", " line 1: prompt_ids is not a list of token ids"},
      {"{\"prompt_ids\": []}\n", " line 1: prompt_ids is empty"},
      {"{\"messages\": []}\n", " line 1: messages need --endpoint /v1/chat/completions"},
      {"{\"prompt\": \"a\", \"output_tokens\": 0}\n", " line 1: output_tokens is not a number of tokens"},
  };
  for (const auto& [text, message] : cases) {
    const auto source = read(text);
    ASSERT_FALSE(source) << text;
    EXPECT_EQ(source.error().message, path_ + message);
  }
  EXPECT_EQ(read("\n").error().message, "load.dataset_path: " + path_ + " has no line");
  EXPECT_EQ(read("{\"prompt_ids\": [1]}\n", true).error().message,
            path_ + " line 1: prompt_ids in a chat need --tokenizer");
}

TEST(RequestBody, HasWhatWasAskedFor) {
  LoadOptions load;
  load.model = "m";
  load.extra_body = R"({"top_k": 5, "temperature": 1})";
  const Json body = Json::parse(request_body(load, {"[1,2]", 2, 7}));
  EXPECT_EQ(body["prompt"], Json({1, 2}));
  EXPECT_EQ(body["max_tokens"], 7);
  EXPECT_EQ(body["top_k"], 5);
  EXPECT_EQ(body["temperature"], 1);
  EXPECT_EQ(body["ignore_eos"], true);
  EXPECT_EQ(body["stream_options"]["include_usage"], true);
  load.stream = load.ignore_eos = false;
  load.path = "/v1/chat/completions";
  const Json chat = Json::parse(request_body(load, {"[{}]", 0, 7}));
  EXPECT_TRUE(chat.contains("messages") && !chat.contains("stream") && !chat.contains("ignore_eos"));
  load.extra_body = "[1]";
  EXPECT_EQ(check(load).error().message,
            "load.extra_body: '[1]' is not a JSON object; use one such as {\"top_k\": 1}");
}

}  // namespace
}  // namespace tandem
