// Reasoning and tool calls through the API, whole and streamed, in DeepSeek-V4's format.
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "serving/api_server_fixture.h"
#include "serving/test_tokenizer.h"

namespace tandem {
namespace {

using json = nlohmann::json;

const char* const kCalls =
    "I should look.</think>Let me see.\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"weather\">\n"
    "<｜DSML｜parameter name=\"city\" string=\"true\">Köln</｜DSML｜parameter>\n"
    "<｜DSML｜parameter name=\"days\" string=\"false\">3</｜DSML｜parameter>\n</｜DSML｜invoke>\n"
    "<｜DSML｜invoke name=\"now\">\n\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>";

class ApiToolsTest : public ApiServerTest {
 protected:
  void start_v4(const std::string& answer) {
    write_folder_ = write_deepseek_v4_test_folder;
    ScriptedEngineOptions options;
    options.limits.max_context_tokens = 1 << 14;
    options.script = [this, answer](const GenerationRequest&) { return encode(answer); };
    start("", std::move(options), false);
    const auto folder =
        std::filesystem::temp_directory_path() / ("tandem_tools_test_" + std::to_string(getpid()));
    write_deepseek_v4_test_folder(folder.string());
    auto loaded = Tokenizer::load(folder.string());
    std::filesystem::remove_all(folder);
    ASSERT_TRUE(loaded);
    tokenizer_ = std::make_shared<const Tokenizer>(std::move(*loaded));
    make_ready();
  }
  std::vector<int32_t> encode(const std::string& text) const {
    return tokenizer_->encode(text, {.add_special_tokens = false}).value();
  }
  static json tools() {
    return json::parse(
        R"([{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}},
                           {"type": "function", "function": {"name": "now"}}])");
  }
  static json thinking(json more = json::object()) {
    more["chat_template_kwargs"] = {{"thinking", true}};
    return more;
  }
  // The deltas of a stream joined to a message, with the checks that every stream must pass.
  static json join(const std::vector<json>& chunks, std::string& finish) {
    json message = {{"content", ""}, {"reasoning_content", ""}, {"tool_calls", json::array()}};
    for (const json& chunk : chunks) {
      const json& choice = chunk["choices"][0];
      const json& delta = choice["delta"];
      for (const char* field : {"content", "reasoning_content"}) {
        if (delta.contains(field))
          message[field] = message[field].get<std::string>() + delta[field].get<std::string>();
      }
      for (const json& call : delta.value("tool_calls", json::array())) {
        const size_t index = call["index"];
        if (call.contains("id")) {
          EXPECT_EQ(index, message["tool_calls"].size());
          EXPECT_EQ(call["type"], "function");
          message["tool_calls"].push_back(call);
        } else {
          EXPECT_FALSE(call["function"].contains("name"));
          json& arguments = message["tool_calls"][index]["function"]["arguments"];
          arguments = arguments.get<std::string>() + call["function"]["arguments"].get<std::string>();
        }
      }
      if (!choice["finish_reason"].is_null()) finish = choice["finish_reason"];
    }
    return message;
  }

  std::shared_ptr<const Tokenizer> tokenizer_;
};

TEST_F(ApiToolsTest, WholeReply) {
  start_v4(kCalls);
  const json choice = chat(thinking({{"tools", tools()}}))["choices"][0];
  const json& message = choice["message"];
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  EXPECT_EQ(message["reasoning_content"], "I should look.");
  EXPECT_EQ(message["content"], "Let me see.");
  ASSERT_EQ(message["tool_calls"].size(), 2);
  const json& call = message["tool_calls"][0];
  EXPECT_EQ(call["type"], "function");
  EXPECT_EQ(call["function"]["name"], "weather");
  EXPECT_EQ(call["function"]["arguments"], R"({"city": "Köln", "days": 3})") << "JSON text";
  EXPECT_EQ(message["tool_calls"][1]["function"]["arguments"], "{}");
  EXPECT_TRUE(call["id"].get<std::string>().starts_with("call_"));
  EXPECT_NE(call["id"], message["tool_calls"][1]["id"]);
}

TEST_F(ApiToolsTest, StreamEqualsWhole) {
  start_v4(kCalls);
  const json whole = chat(thinking({{"tools", tools()}}))["choices"][0]["message"];
  const auto chunks =
      stream("/v1/chat/completions", chat_body(thinking({{"tools", tools()}, {"logprobs", true}})));
  std::string finish;
  const json message = join(chunks, finish);
  EXPECT_EQ(finish, "tool_calls");
  EXPECT_EQ(message["content"], whole["content"]);
  EXPECT_EQ(message["reasoning_content"], whole["reasoning_content"]);
  ASSERT_EQ(message["tool_calls"].size(), 2);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(message["tool_calls"][i]["function"], whole["tool_calls"][i]["function"]);
  }
  EXPECT_GT(chunks.size(), 20u) << "reasoning and content flow as they come";
  size_t logprobs = 0;
  for (const json& chunk : chunks) {
    const json& list = chunk["choices"][0]["logprobs"];
    if (list.is_object()) logprobs += list["content"].size();
  }
  EXPECT_EQ(logprobs, encode(kCalls).size()) << "every token has its own, wherever its text went";
}

TEST_F(ApiToolsTest, WithoutToolsCallsAreText) {
  start_v4(kCalls);
  const std::string text = kCalls;
  json choice = chat(thinking())["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_EQ(choice["message"]["content"], text.substr(text.find("Let me")));
  EXPECT_FALSE(choice["message"].contains("tool_calls"));
  // Chat mode: nothing opened the reasoning.
  choice = chat({{"tools", tools()}, {"tool_choice", "none"}})["choices"][0];
  EXPECT_EQ(choice["message"]["content"], text);
  EXPECT_FALSE(choice["message"].contains("reasoning_content"));
}

TEST_F(ApiToolsTest, CutOffCallsAreContent) {
  start_v4(kCalls);
  const auto tokens = static_cast<int>(encode(kCalls).size());
  for (const bool streamed : {false, true}) {
    for (const int left_out : {3, 20, 40, 150}) {  // in the end tag, in the second call, in the first
      const json fields = thinking({{"tools", tools()}, {"max_tokens", tokens - left_out}});
      std::string finish;
      json message;
      if (streamed) {
        message = join(stream("/v1/chat/completions", chat_body(fields)), finish);
      } else {
        const json choice = chat(fields)["choices"][0];
        message = choice["message"];
        finish = choice["finish_reason"];
      }
      EXPECT_EQ(finish, "length");
      const size_t calls = message.value("tool_calls", json::array()).size();
      EXPECT_EQ(calls, left_out == 3 ? 2 : left_out == 150 ? 0 : 1) << left_out;
      EXPECT_NE(message["content"].get<std::string>().find("<"), std::string::npos) << message;
    }
  }
}

TEST_F(ApiToolsTest, PromptHasToolsCallsAndResults) {
  start_v4("fine");
  const json turns = json::parse(R"([
      {"role": "user", "content": "Weather?<think>"},
      {"role": "assistant", "content": null, "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{\"city\": \"Köln\"}"}}]},
      {"role": "tool", "tool_call_id": "c1", "content": "sunny"}])");
  chat({{"messages", turns}, {"tools", tools()}});
  const auto prompt = engine_->requests().back().prompt;
  EXPECT_EQ(std::count(prompt.begin(), prompt.end(), kBosId), 1) << "one BOS";
  EXPECT_EQ(prompt.front(), kBosId);
  const std::string text = tokenizer_->decode(prompt).value();
  EXPECT_NE(text.find("{\"name\": \"weather\", \"parameters\": {\"type\": \"object\"}}\n{\"name\": \"now\"}"),
            std::string::npos)
      << text;
  EXPECT_TRUE(text.ends_with(
      "<｜Assistant｜></think>\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke "
      "name=\"weather\">\n<｜DSML｜parameter "
      "name=\"city\" string=\"true\">Köln</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>"
      "<｜end▁of▁sentence｜><｜User｜><tool_result>sunny</tool_result><｜Assistant｜></think>"))
      << text;
  const int32_t think = *tokenizer_->id_of("<think>");
  EXPECT_EQ(std::count(prompt.begin(), prompt.end(), think), 2) << "those of the tools' text, not the user's";
}

TEST_F(ApiToolsTest, TemplateWithoutToolsRefuses) {
  start();
  const json by_tools = chat({{"tools", tools()}}, 400)["error"];
  EXPECT_EQ(by_tools["param"], "tools");
  EXPECT_NE(by_tools["message"].get<std::string>().find("no place for tools"), std::string::npos);
  chat({{"reasoning_effort", "low"}}, 400);
  const json last = chat({{"messages", {{{"role", "latest_reminder"}, {"content", "x"}}}}}, 400)["error"];
  EXPECT_EQ(last["param"], "messages[0].role");
}

TEST_F(ApiToolsTest, BudgetsOfReasoningReachTheEngine) {
  start_v4("a</think>b");
  chat(thinking({{"thinking_token_budget", 3}}));
  GrammarSpec spec = engine_->requests().back().sampling.grammar;
  EXPECT_TRUE(spec.empty() && spec.has_budget() && spec.in_reasoning);
  EXPECT_EQ(spec.reasoning_budget, 3u);
  EXPECT_EQ(spec.reasoning_end, tokenizer_->id_of("</think>"));
  const json message = {{"model", "org/test-model"},
                        {"max_tokens", 20},
                        {"messages", {{{"role", "user"}, {"content", "hi"}}}},
                        {"thinking", {{"type", "enabled"}, {"budget_tokens", 7}}}};
  EXPECT_EQ(post("/v1/messages", message).status, 200);
  spec = engine_->requests().back().sampling.grammar;
  EXPECT_EQ(spec.reasoning_budget, 7u);
  EXPECT_TRUE(spec.in_reasoning);
  chat(thinking());
  EXPECT_FALSE(engine_->requests().back().sampling.grammar.has_budget());
}

}  // namespace
}  // namespace tandem
