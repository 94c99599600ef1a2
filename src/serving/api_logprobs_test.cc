// Log probabilities of prompts over HTTP: echo with logprobs in OpenAI's old form, and vLLM's
// prompt_logprobs.
#include <nlohmann/json.hpp>

#include "serving/api_server_fixture.h"
#include "serving/test_tokenizer.h"

namespace tandem {
namespace {

using nlohmann::json;

class ApiLogprobsTest : public ApiServerTest {};

// "<s>hi" and "hello": <s> belongs to the prompt and not to its text.
TEST_F(ApiLogprobsTest, EchoedPromptsHaveLogprobs) {
  start();
  const json reply = complete({{"echo", true}, {"logprobs", 2}, {"max_tokens", 2}});
  const json& choice = reply["choices"][0];
  EXPECT_EQ(choice["text"], "hihe");
  EXPECT_FALSE(choice.contains("prompt_logprobs"));
  const json& logprobs = choice["logprobs"];
  EXPECT_EQ(logprobs["tokens"], json({"<s>", "h", "i", "h", "e"}));
  EXPECT_EQ(logprobs["token_logprobs"], json({nullptr, -1.125, -1.25, -0.5, -0.5}));
  EXPECT_EQ(logprobs["text_offset"], json({0, 0, 1, 2, 3}));
  ASSERT_EQ(logprobs["top_logprobs"].size(), 5u);
  EXPECT_EQ(logprobs["top_logprobs"][0], nullptr);
  EXPECT_EQ(logprobs["top_logprobs"][1].size(), 3u) << "the two best, and the token";
  EXPECT_EQ(logprobs["top_logprobs"][1]["h"], -1.125);
  EXPECT_EQ(reply["usage"]["completion_tokens"], 2);
}

TEST_F(ApiLogprobsTest, NothingNeedsToBeGenerated) {
  start();
  json reply =
      complete({{"echo", true}, {"logprobs", 1}, {"max_tokens", 0}, {"prompt", {{104, 105}, {106}}}});
  ASSERT_EQ(reply["choices"].size(), 2u);
  EXPECT_EQ(reply["choices"][0]["text"], "hi");
  EXPECT_EQ(reply["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(reply["choices"][0]["logprobs"]["token_logprobs"], json({nullptr, -1.125}));
  EXPECT_EQ(reply["choices"][1]["logprobs"]["token_logprobs"], json::array({nullptr}));
  EXPECT_EQ(reply["usage"]["completion_tokens"], 0);
  EXPECT_EQ(complete({{"echo", true}, {"max_tokens", 0}})["choices"][0]["text"], "hi");
  reply = complete({{"max_tokens", 0}}, 400);
  EXPECT_EQ(reply["error"]["param"], "max_tokens");
}

TEST_F(ApiLogprobsTest, OneAnswerScoresThePromptForAll) {
  start("", {.script = [](const GenerationRequest& request) {
          return byte_ids(std::to_string(request.sampling.stream));
        }});
  const json reply = complete({{"echo", true}, {"logprobs", 0}, {"n", 3}, {"prompt", {"ab", "c"}}});
  ASSERT_EQ(reply["choices"].size(), 6u);
  const char* texts[] = {"ab0", "ab1", "ab2", "c0", "c1", "c2"};
  for (size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(reply["choices"][i]["text"], texts[i]);
    EXPECT_EQ(reply["choices"][i]["logprobs"]["tokens"].size(), i < 3 ? 4u : 3u);
    EXPECT_EQ(reply["choices"][i]["logprobs"]["token_logprobs"][1], -1.125);
  }
  size_t scoring = 0;
  for (const GenerationRequest& request : engine_->requests())
    scoring += request.sampling.prompt_logprobs >= 0 ? 1 : 0;
  EXPECT_EQ(scoring, 2u);
}

TEST_F(ApiLogprobsTest, StreamsBeginWithTheEchoedTokens) {
  start();
  const auto events = stream("/v1/completions", completion_body({{"echo", true}, {"logprobs", 0}, {"n", 2}}));
  for (int index : {0, 1}) {
    std::string text;
    json tokens = json::array();
    for (const json& event : events) {
      const json& choice = event["choices"][0];
      if (choice["index"] != index) continue;
      text += choice["text"];
      if (choice["logprobs"].is_object())
        tokens.insert(tokens.end(), choice["logprobs"]["tokens"].begin(), choice["logprobs"]["tokens"].end());
    }
    EXPECT_EQ(text, "hihello");
    EXPECT_EQ(tokens, json({"<s>", "h", "i", "h", "e", "l", "l", "o"}));
  }
}

TEST_F(ApiLogprobsTest, PromptLogprobsAreThoseOfVllm) {
  start();
  const json want = json::parse(R"([null,
      {"104": {"logprob": -1.125, "rank": 2, "decoded_token": "h"},
       "0": {"logprob": -0.5, "rank": 1, "decoded_token": "\u0000"}},
      {"105": {"logprob": -1.25, "rank": 2, "decoded_token": "i"},
       "0": {"logprob": -0.5, "rank": 1, "decoded_token": "\u0000"}}])");
  json reply = complete({{"prompt_logprobs", 1}});
  EXPECT_EQ(reply["choices"][0]["prompt_logprobs"], want);
  EXPECT_EQ(reply["choices"][0]["logprobs"], nullptr);
  // Asked for more than the echo: the echo has what it asked for.
  reply = complete({{"prompt_logprobs", 1}, {"echo", true}, {"logprobs", 0}});
  EXPECT_EQ(reply["choices"][0]["prompt_logprobs"], want);
  EXPECT_EQ(reply["choices"][0]["logprobs"]["top_logprobs"][1], json({{"h", -1.125}}));
  reply = chat({{"prompt_logprobs", 0}});
  EXPECT_EQ(reply["prompt_logprobs"].size(), reply["usage"]["prompt_tokens"]);
  EXPECT_EQ(reply["prompt_logprobs"][0], nullptr);
  EXPECT_EQ(reply["prompt_logprobs"][1].size(), 1u);

  reply = complete({{"prompt_logprobs", 1}, {"stream", true}}, 400);
  EXPECT_EQ(reply["error"]["param"], "prompt_logprobs");
  EXPECT_NE(reply["error"]["message"].get<std::string>().find("has no place in a stream"), std::string::npos);
  EXPECT_EQ(complete({{"prompt_logprobs", 21}}, 400)["error"]["param"], "prompt_logprobs");
  EXPECT_EQ(chat({{"prompt_logprobs", -1}}, 400)["error"]["param"], "prompt_logprobs");
}

}  // namespace
}  // namespace tandem
