// Forms of answers and enforced calls through the API, of a model that writes harmony messages: what reaches
// the engine, and what comes back, whole and streamed.
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "serving/api_server_fixture.h"
#include "serving/test_tokenizer.h"

namespace tandem {
namespace {

using json = nlohmann::json;

const std::string kThought = "<|channel|>analysis<|message|>I should look.<|end|><|start|>assistant";
const std::string kCall =
    "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{\"city\": \"Köln\"}<|call|>";

class ApiHarmonyTest : public ApiServerTest {
 protected:
  void start_harmony(const std::string& answer,
                     void (*folder)(const std::string&) = write_harmony_test_folder) {
    write_folder_ = folder;
    ScriptedEngineOptions options;
    options.script = [this, answer](const GenerationRequest&) {
      return tokenizer_->encode(answer, {.add_special_tokens = false}).value();
    };
    start("", std::move(options), false);
    const auto path =
        std::filesystem::temp_directory_path() / ("tandem_harmony_test_" + std::to_string(getpid()));
    folder(path.string());
    auto loaded = Tokenizer::load(path.string());
    std::filesystem::remove_all(path);
    ASSERT_TRUE(loaded);
    tokenizer_ = std::make_shared<const Tokenizer>(std::move(*loaded));
    make_ready();
  }
  static json tools() {
    return json::parse(
        R"([{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}])");
  }
  static json wanted_number() {
    return {{"type", "json_schema"}, {"json_schema", {{"name", "n"}, {"schema", {{"type", "integer"}}}}}};
  }
  GrammarSpec asked() const { return engine_->requests().back().sampling.grammar; }

  std::shared_ptr<const Tokenizer> tokenizer_;
};

TEST_F(ApiHarmonyTest, RequiredCalls) {
  start_harmony(kThought + kCall);
  const json fields = {{"tools", tools()}, {"tool_choice", "required"}};
  const json choice = chat(fields)["choices"][0];
  const json& message = choice["message"];
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  EXPECT_EQ(message["reasoning_content"], "I should look.");
  EXPECT_TRUE(message["content"].is_null()) << message;
  ASSERT_EQ(message["tool_calls"].size(), 1);
  EXPECT_EQ(message["tool_calls"][0]["function"]["arguments"], R"({"city": "Köln"})");
  const GrammarSpec spec = asked();
  EXPECT_EQ(spec.kind, GrammarKind::tool_calls);
  EXPECT_FALSE(spec.in_reasoning);
  EXPECT_EQ(spec.reasoning_end, -1) << "the messages have it";
  const json form = json::parse(spec.text);
  EXPECT_EQ(form["format"], "harmony");
  EXPECT_TRUE(form["required"] && form["reasoning"] && form["parallel"]) << form;

  std::string reasoning, name, arguments;
  for (const json& chunk : stream("/v1/chat/completions", chat_body(fields))) {
    const json& delta = chunk["choices"][0]["delta"];
    reasoning += delta.value("reasoning_content", "");
    for (const json& call : delta.value("tool_calls", json::array())) {
      name += call["function"].value("name", "");
      arguments += call["function"].value("arguments", "");
    }
  }
  EXPECT_EQ(reasoning, "I should look.");
  EXPECT_EQ(name, "weather");
  EXPECT_EQ(arguments, R"({"city": "Köln"})");
}

TEST_F(ApiHarmonyTest, TheFormIsThatOfAMessage) {
  start_harmony(kThought + "<|channel|>final <|constrain|>json<|message|>17");
  const json message = chat({{"response_format", wanted_number()}})["choices"][0]["message"];
  EXPECT_EQ(message["content"], "17");
  EXPECT_EQ(message["reasoning_content"], "I should look.");
  const GrammarSpec spec = asked();
  EXPECT_EQ(spec.kind, GrammarKind::tool_calls);
  const json form = json::parse(spec.text);
  EXPECT_EQ(form["format"], "harmony");
  EXPECT_TRUE(form["tools"].empty());
  EXPECT_EQ(form["answer"]["kind"], static_cast<int>(GrammarKind::json_schema));
  EXPECT_EQ(form["answer"]["text"], R"({"type":"integer"})");
  // Beside tools: the one or the other.
  chat({{"response_format", wanted_number()}, {"tools", tools()}});
  const json either = json::parse(asked().text);
  EXPECT_EQ(either["tools"].size(), 1);
  EXPECT_EQ(either["answer"], form["answer"]);
  EXPECT_FALSE(either["required"]);
  // A plain prompt is continued without messages.
  complete({{"response_format", wanted_number()}});
  EXPECT_EQ(asked().kind, GrammarKind::json_schema);
}

TEST_F(ApiHarmonyTest, RefusedByName) {
  start_harmony(kThought);
  const json budget = chat({{"thinking_token_budget", 3}}, 400)["error"];
  EXPECT_NE(budget["message"].get<std::string>().find("reasoning_effort"), std::string::npos) << budget;
  server_.reset();
  start_harmony("17", write_harmony_test_folder_without_marks);
  for (const json& fields :
       {json{{"response_format", wanted_number()}}, json{{"tools", tools()}, {"tool_choice", "required"}}}) {
    const json error = chat(fields, 400)["error"];
    EXPECT_NE(error["message"].get<std::string>().find("need <|channel|> as a control token"),
              std::string::npos)
        << error;
  }
  chat();  // text alone needs none
}

}  // namespace
}  // namespace tandem
