#include "serving/openai_request.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace tandem {
namespace {

using nlohmann::json;

class RequestTest : public ::testing::Test {
 protected:
  RequestTest() : known_(100, true) {
    known_[98] = false;  // in the embedding, not in the tokenizer
    context_.model = "m";
    context_.known_tokens = &known_;
    context_.max_answers = 16;
    context_.defaults.temperature = 0.6f;
  }

  ApiResult<CompletionRequest> completion(const json& fields) const {
    json body = {{"model", "m"}, {"prompt", "hi"}};
    body.update(fields);
    return parse_completion_request(body.dump(), context_);
  }
  ApiResult<ChatRequest> chat(const json& fields) const {
    json body = {{"model", "m"}, {"messages", {{{"role", "user"}, {"content", "hi"}}}}};
    body.update(fields);
    return parse_chat_request(body.dump(), context_);
  }

  std::vector<bool> known_;
  RequestContext context_;
};

TEST_F(RequestTest, DefaultsAreThoseOfTheModelAndTheApi) {
  const auto request = completion(json::object());
  ASSERT_TRUE(request);
  EXPECT_EQ(request->common.sampling.temperature, 0.6f);
  EXPECT_EQ(request->common.sampling.max_tokens, 16u);
  EXPECT_EQ(request->common.sampling.top_logprobs, -1);
  EXPECT_FALSE(request->common.sampling.seed);
  EXPECT_EQ(request->common.n, 1u);
  EXPECT_FALSE(request->common.stream);
  EXPECT_EQ(chat(json::object())->common.sampling.max_tokens, 2147483647u);  // cut to the context later
}

TEST_F(RequestTest, EveryFieldArrives) {
  const auto request = completion({{"temperature", 0},
                                   {"top_p", 0.5},
                                   {"top_k", 7},
                                   {"min_p", 0.25},
                                   {"seed", -3},
                                   {"frequency_penalty", -2},
                                   {"presence_penalty", 2},
                                   {"repetition_penalty", 1.5},
                                   {"max_tokens", 9},
                                   {"min_tokens", 2},
                                   {"ignore_eos", true},
                                   {"stop_token_ids", {5, 6}},
                                   {"logprobs", 3},
                                   {"logit_bias", {{"4", -100}, {"7", 1.5}}},
                                   {"n", 4},
                                   {"stop", {"a", "b"}},
                                   {"stream", true},
                                   {"stream_options", {{"include_usage", true}}},
                                   {"user", "u"},
                                   {"echo", false}});
  ASSERT_TRUE(request) << request.error().message;
  const SamplingParams& sampling = request->common.sampling;
  EXPECT_EQ(sampling.temperature, 0);
  EXPECT_EQ(sampling.top_p, 0.5f);
  EXPECT_EQ(sampling.top_k, 7);
  EXPECT_EQ(sampling.min_p, 0.25f);
  EXPECT_EQ(sampling.seed, static_cast<uint64_t>(-3));
  EXPECT_EQ(sampling.frequency_penalty, -2);
  EXPECT_EQ(sampling.presence_penalty, 2);
  EXPECT_EQ(sampling.repetition_penalty, 1.5f);
  EXPECT_EQ(sampling.max_tokens, 9u);
  EXPECT_EQ(sampling.min_tokens, 2u);
  EXPECT_TRUE(sampling.ignore_eos);
  EXPECT_EQ(sampling.stop_token_ids, (std::vector<int32_t>{5, 6}));
  EXPECT_EQ(sampling.top_logprobs, 3);
  EXPECT_EQ(sampling.logit_bias, (std::vector<std::pair<int32_t, float>>{{4, -100.f}, {7, 1.5f}}));
  EXPECT_EQ(request->common.n, 4u);
  EXPECT_EQ(request->common.stops, (std::vector<std::string>{"a", "b"}));
  EXPECT_TRUE(request->common.stream);
  EXPECT_TRUE(request->common.include_usage);
}

TEST_F(RequestTest, NullMeansAbsent) {
  json fields;
  for (const char* name : {"temperature", "top_p", "top_k", "n", "seed", "stop", "max_tokens", "logprobs",
                           "stream", "stream_options", "logit_bias", "suffix", "best_of", "user"}) {
    fields[name] = nullptr;
  }
  const auto request = completion(fields);
  ASSERT_TRUE(request) << request.error().message;
  EXPECT_EQ(request->common.sampling.max_tokens, 16u);
}

TEST_F(RequestTest, PromptsComeInFourShapes) {
  EXPECT_EQ(completion({{"prompt", "abc"}})->prompts[0].text, "abc");
  EXPECT_EQ(completion({{"prompt", {"a", ""}}})->prompts[1].text, "");
  const auto ids = completion({{"prompt", {1, 2, 99}}});
  ASSERT_TRUE(ids);
  ASSERT_EQ(ids->prompts.size(), 1u);
  EXPECT_EQ(ids->prompts[0].tokens, (std::vector<int32_t>{1, 2, 99}));
  EXPECT_EQ(completion({{"prompt", json::parse("[[1],[2,3]]")}})->prompts[1].tokens,
            (std::vector<int32_t>{2, 3}));
}

// What is refused names the field, and where there is one the value.
struct Refusal {
  const char* fields;  // JSON, merged over a good request
  const char* param;
  const char* part;  // of the message
};

TEST_F(RequestTest, CompletionsRefuseByName) {
  const Refusal table[] = {
      {R"({"prompt":[]})", "prompt", "[]"},
      {R"({"prompt":{}})", "prompt", "{}"},
      {R"({"prompt":null})", "prompt", "missing"},
      {R"({"prompt":["a",1]})", "prompt", "prompt[1] is 1"},
      {R"({"prompt":[[1],[]]})", "prompt", "prompt[1] is []"},
      {R"({"prompt":[[1],"a"]})", "prompt", "prompt[1] is \"a\""},
      {R"({"prompt":[true]})", "prompt", "[true]"},
      // f3: every place that takes an id, every id that is none.
      {R"({"prompt":[-1]})", "prompt", "-1"},
      {R"({"prompt":[100]})", "prompt", "100"},
      {R"({"prompt":[98]})", "prompt", "98"},
      {R"({"prompt":[2147483648]})", "prompt", "2147483648"},
      {R"({"prompt":[9223372036854775808]})", "prompt", "9223372036854775808"},
      {R"({"prompt":[1.5]})", "prompt", "1.5"},
      {R"({"prompt":[1,"7"]})", "prompt", "\"7\""},
      {R"({"prompt":[1,""]})", "prompt", "\"\""},
      {R"({"prompt":[[1],[4294967297]]})", "prompt[1]", "4294967297"},
      {R"({"stop_token_ids":[-1]})", "stop_token_ids", "-1"},
      {R"({"stop_token_ids":[100]})", "stop_token_ids", "100"},
      {R"({"stop_token_ids":[98]})", "stop_token_ids", "98"},
      {R"({"stop_token_ids":[2147483648]})", "stop_token_ids", "2147483648"},
      {R"({"stop_token_ids":[9223372036854775808]})", "stop_token_ids", "9223372036854775808"},
      {R"({"stop_token_ids":[1.5]})", "stop_token_ids", "1.5"},
      {R"({"stop_token_ids":["7"]})", "stop_token_ids", "\"7\""},
      {R"({"stop_token_ids":7})", "stop_token_ids", "7"},
      {R"({"logit_bias":{"-1":1}})", "logit_bias", "-1"},
      {R"({"logit_bias":{"100":1}})", "logit_bias", "100"},
      {R"({"logit_bias":{"98":1}})", "logit_bias", "98"},
      {R"({"logit_bias":{"2147483648":1}})", "logit_bias", "2147483648"},
      {R"({"logit_bias":{"9223372036854775808":1}})", "logit_bias", "9223372036854775808"},
      {R"({"logit_bias":{"1.5":1}})", "logit_bias", "1.5"},
      {R"({"logit_bias":{"":1}})", "logit_bias", "\"\""},
      {R"({"logit_bias":{"7":101}})", "logit_bias", "101"},
      {R"({"logit_bias":{"7":"a"}})", "logit_bias", "\"a\""},
      {R"({"logit_bias":[1]})", "logit_bias", "[1]"},
      // Ranges and types.
      {R"({"temperature":-0.1})", "temperature", "0..2"},
      {R"({"temperature":2.1})", "temperature", "2.1"},
      {R"({"temperature":"1"})", "temperature", "\"1\""},
      {R"({"top_p":1.01})", "top_p", "1.01"},
      {R"({"top_p":-0.01})", "top_p", "-0.01"},
      {R"({"min_p":2})", "min_p", "2"},
      {R"({"top_k":-2})", "top_k", "-2"},
      {R"({"top_k":1.5})", "top_k", "1.5"},
      {R"({"top_k":2147483648})", "top_k", "2147483648"},
      {R"({"n":0})", "n", "0"},
      {R"({"n":17})", "n", "17"},
      {R"({"n":true})", "n", "true"},
      {R"({"n":9,"prompt":["a","b"]})", "n", "18"},
      {R"({"max_tokens":0})", "max_tokens", "0"},
      {R"({"max_tokens":-1})", "max_tokens", "-1"},
      {R"({"max_tokens":1e30})", "max_tokens", "1e+30"},
      {R"({"min_tokens":17})", "min_tokens", "16"},
      {R"({"seed":1.5})", "seed", "1.5"},
      {R"({"seed":9223372036854775808})", "seed", "9223372036854775808"},
      {R"({"frequency_penalty":2.5})", "frequency_penalty", "2.5"},
      {R"({"presence_penalty":-2.5})", "presence_penalty", "-2.5"},
      {R"({"repetition_penalty":0})", "repetition_penalty", "0"},
      {R"({"ignore_eos":1})", "ignore_eos", "1"},
      {R"({"stream":"yes"})", "stream", "\"yes\""},
      {R"({"stop":""})", "stop", "empty"},
      {R"({"stop":["a",""]})", "stop", "empty"},
      {R"({"stop":[1]})", "stop", "1"},
      {R"({"stop":7})", "stop", "7"},
      {R"({"stop":["","","","","","","","","","","","","","","","",""]})", "stop", "16"},
      {R"({"stream_options":{"include_usage":true}})", "stream_options", "stream"},
      {R"({"stream":true,"stream_options":{"include_usage":1}})", "stream_options.include_usage", "1"},
      {R"({"stream":true,"stream_options":{"continuous_usage_stats":true}})",
       "stream_options.continuous_usage_stats", "include_usage"},
      {R"({"stream":true,"stream_options":{"other":1}})", "stream_options.other", "other"},
      {R"({"logprobs":21})", "logprobs", "21"},
      {R"({"logprobs":true})", "logprobs", "true"},
      {R"({"best_of":3})", "best_of", "3"},
      {R"({"suffix":"x"})", "suffix", "infilling"},
      {R"({"response_format":{"type":"xml"}})", "response_format.type",
       "\"xml\"; it must be text, json_object"},
      {R"({"response_format":{"type":"json_schema","json_schema":{"name":"a"}}})",
       "response_format.json_schema", "schema is missing"},
      {R"({"response_format":{"type":"json_schema","json_schema":{"name":"a","schema":{"not":{}}}}})",
       "response_format", "the keyword \"not\" is not supported"},
      {R"({"guided_json":7})", "guided_json", "guided_json is 7; it must be a JSON schema"},
      {R"_({"guided_regex":"a(?=b)"})_", "guided_regex", "lookahead"},
      {R"({"guided_choice":["a",1]})", "guided_choice", "holds 1"},
      {R"({"guided_grammar":"root ::= word"})", "guided_grammar", "\"word\" is not there"},
      {R"({"grammar":""})", "grammar", "a string that is not empty"},
      {R"({"structured_outputs":{"regex":"a","choice":["b"]}})", "structured_outputs.choice",
       "structured_outputs.regex and structured_outputs.choice"},
      {R"({"structured_outputs":{"structural_tag":"x"}})", "structured_outputs.structural_tag", "tools"},
      {R"({"guided_regex":"a","response_format":{"type":"json_object"}})", "guided_regex",
       "response_format and guided_regex both"},
      {R"({"use_beam_search":true})", "use_beam_search", "beam"},
      {R"({"bad_words":["x"]})", "bad_words", "logit_bias"},
      {R"({"service_tier":"flex"})", "service_tier", "flex"},
      {R"({"temprature":1})", "temprature", "temperature"},
  };
  for (const Refusal& row : table) {
    const auto request = completion(json::parse(row.fields));
    ASSERT_FALSE(request) << row.fields;
    EXPECT_EQ(request.error().status, 400) << row.fields;
    EXPECT_EQ(request.error().param, row.param) << row.fields;
    EXPECT_NE(request.error().message.find(row.part), std::string::npos)
        << row.fields << ": " << request.error().message;
    EXPECT_EQ(request.error().message.find('\n'), std::string::npos) << row.fields;
  }
}

TEST_F(RequestTest, TheFormOfAnAnswer) {
  struct Form {
    const char* fields;
    GrammarKind kind;
    const char* text;
  };
  const Form table[] = {
      {R"({"response_format":{"type":"text"}})", GrammarKind::none, ""},
      {R"({"response_format":{"type":"json_object"}})", GrammarKind::json_object, ""},
      // Keys stay in the order of the request.
      {R"({"response_format":{"type":"json_schema","json_schema":{"name":"n","strict":true,"schema":
           {"type":"object","properties":{"z":{},"a":{}}}}}})",
       GrammarKind::json_schema, R"({"type":"object","properties":{"z":{},"a":{}}})"},
      {R"({"guided_json":"{\"type\": \"null\"}"})", GrammarKind::json_schema, R"({"type": "null"})"},
      {R"({"structured_outputs":{"json":{"z":1,"a":2}}})", GrammarKind::json_schema, R"({"z":1,"a":2})"},
      {R"({"structured_outputs":{"json_object":true}})", GrammarKind::json_object, ""},
      {R"({"json_schema":{"type":"null"}})", GrammarKind::json_schema, R"({"type":"null"})"},
      {R"({"guided_regex":"a+"})", GrammarKind::regex, "a+"},
      {R"({"guided_choice":["a","b"]})", GrammarKind::choice, R"(["a","b"])"},
      {R"({"grammar":"root ::= \"a\""})", GrammarKind::gbnf, "root ::= \"a\""},
  };
  for (const Form& row : table) {
    const std::string body = std::string(R"({"model":"m","prompt":"a",)") + (row.fields + 1);
    const auto request = parse_completion_request(body, context_);
    ASSERT_TRUE(request) << row.fields << request.error().message;
    EXPECT_EQ(request->common.sampling.grammar.kind, row.kind) << row.fields;
    EXPECT_EQ(request->common.sampling.grammar.text, row.text) << row.fields;
  }
}

TEST_F(RequestTest, ChatRefusesByName) {
  const Refusal table[] = {
      {R"({"messages":null})", "messages", "missing"},
      {R"({"messages":[]})", "messages", "[]"},
      {R"({"messages":"hi"})", "messages", "\"hi\""},
      {R"({"messages":["hi"]})", "messages", "messages[0] is \"hi\""},
      {R"({"messages":[{"content":"a"}]})", "messages[0].role", "messages[0].role"},
      {R"({"messages":[{"role":"tool","content":"a"}]})", "messages[0].role", "tool"},
      {R"({"messages":[{"role":"user"}]})", "messages[0].content", "missing"},
      {R"({"messages":[{"role":"user","content":7}]})", "messages[0].content", "7"},
      {R"({"messages":[{"role":"user","content":[]}]})", "messages[0].content", "[]"},
      {R"({"messages":[{"role":"user","content":[{"type":"image_url","image_url":{}}]}]})",
       "messages[0].content", "image_url"},
      {R"({"messages":[{"role":"user","content":[{"type":"text","text":1}]}]})", "messages[0].content",
       "text is 1"},
      {R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b","tool_calls":[{"id":"x"}]}]})",
       "messages[1].tool_calls", "tool_calls"},
      {R"({"messages":[{"role":"user","content":"a","weight":1}]})", "messages[0].weight", "weight"},
      {R"({"tools":[{"type":"function"}]})", "tools", "no place for tools"},
      {R"({"tool_choice":"required"})", "tool_choice", "tools is missing"},
      {R"({"functions":[{"name":"f"}]})", "functions", "give them as tools"},
      {R"({"response_format":{"type":"json_schema"}})", "response_format.json_schema",
       "json_schema is missing"},
      {R"({"modalities":["text","audio"]})", "modalities", "audio"},
      {R"({"audio":{"voice":"x"}})", "audio", "text"},
      {R"({"prediction":{"type":"content"}})", "prediction", "prediction"},
      {R"({"web_search_options":{"a":1}})", "web_search_options", "search"},
      {R"({"reasoning_effort":"low"})", "reasoning_effort", "chat_template_kwargs"},
      {R"({"chat_template":"{{x}}"})", "chat_template", "checkpoint"},
      {R"({"store":true})", "store", "stored"},
      {R"({"logprobs":3})", "logprobs", "3"},
      {R"({"top_logprobs":3})", "top_logprobs", "logprobs"},
      {R"({"logprobs":true,"top_logprobs":21})", "top_logprobs", "21"},
      {R"({"max_tokens":4,"max_completion_tokens":5})", "max_completion_tokens", "5"},
      {R"({"max_completion_tokens":0})", "max_completion_tokens", "0"},
      {R"({"chat_template_kwargs":[]})", "chat_template_kwargs", "[]"},
      {R"({"prompt":"x"})", "prompt", "prompt"},
      {R"({"suffix":"x"})", "suffix", "suffix"},
  };
  for (const Refusal& row : table) {
    const auto request = chat(json::parse(row.fields));
    ASSERT_FALSE(request) << row.fields;
    EXPECT_EQ(request.error().status, 400) << row.fields;
    EXPECT_EQ(request.error().param, row.param) << row.fields << ": " << request.error().message;
    EXPECT_NE(request.error().message.find(row.part), std::string::npos)
        << row.fields << ": " << request.error().message;
  }
}

TEST_F(RequestTest, ChatAcceptsWhatClientsSendBack) {
  const auto request = chat(json::parse(R"({
    "messages": [
      {"role": "developer", "content": "be short", "name": "boss"},
      {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
      {"role": "assistant", "content": "c", "refusal": null, "audio": null, "annotations": [], "tool_calls": null}
    ],
    "tools": [], "tool_choice": "none", "response_format": {"type": "text"}, "modalities": ["text"], "store": false,
    "metadata": {"a": "b"}, "parallel_tool_calls": true, "logprobs": true, "top_logprobs": 2,
    "max_completion_tokens": 5, "chat_template_kwargs": {"thinking": true}, "service_tier": "auto"})"));
  ASSERT_TRUE(request) << request.error().message;
  EXPECT_EQ(request->input.messages[0].role, "developer");
  EXPECT_EQ(request->input.messages[0].name, "boss");
  EXPECT_EQ(request->input.messages[1].content, "a\nb");
  EXPECT_EQ(request->common.sampling.max_tokens, 5u);
  EXPECT_EQ(request->common.sampling.top_logprobs, 2);
  EXPECT_EQ(request->input.kwargs_json, R"({"thinking":true})");
  EXPECT_FALSE(request->may_call_tools);
}

TEST_F(RequestTest, ChatReadsTools) {
  context_.chat = {.tools = true, .tool_messages = true, .reasoning_effort = true, .reads_tool_calls = true};
  const json turns = json::parse(R"([
      {"role": "user", "content": "a"},
      {"role": "assistant", "content": null, "reasoning_content": "hm", "tool_calls": [
        {"index": 0, "id": "c1", "type": "function", "function": {"name": "f", "arguments": "{\"b\": 1, \"a\": 2}"}},
        {"id": "c2", "type": "function", "function": {"name": "mcp.g-1", "arguments": ""}}]},
      {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "one"}]},
      {"role": "tool", "tool_call_id": "c2", "content": ""}])");
  const json tools = json::parse(R"([{"type": "function", "function": {"name": "f"}}])");
  auto request = chat(
      {{"messages", turns}, {"tools", tools}, {"parallel_tool_calls", false}, {"reasoning_effort", "low"}});
  ASSERT_TRUE(request) << request.error().message;
  const auto& messages = request->input.messages;
  ASSERT_EQ(messages.size(), 4);
  EXPECT_FALSE(messages[1].has_content);
  EXPECT_EQ(messages[1].reasoning_content, "hm");
  ASSERT_EQ(messages[1].tool_calls.size(), 2);
  EXPECT_EQ(messages[1].tool_calls[0].id, "c1");
  EXPECT_EQ(messages[1].tool_calls[0].arguments, R"({"b": 1, "a": 2})");
  EXPECT_EQ(messages[1].tool_calls[1].name, "mcp.g-1");
  EXPECT_EQ(messages[1].tool_calls[1].arguments, "{}");
  EXPECT_EQ(messages[2].tool_call_id, "c1");
  EXPECT_EQ(messages[2].content, "one");
  EXPECT_TRUE(request->may_call_tools);
  EXPECT_FALSE(request->parallel_tool_calls);
  EXPECT_EQ(request->input.kwargs_json, R"({"reasoning_effort":"low"})");
  // With "none" the model hears of no tools.
  request = chat({{"tools", tools}, {"tool_choice", "none"}});
  ASSERT_TRUE(request) << request.error().message;
  EXPECT_FALSE(request->may_call_tools);
  EXPECT_EQ(request->input.tools_json, "");
  // The order of keys is the client's.
  const auto ordered = parse_chat_request(
      R"({"model": "m", "messages": [{"role": "user", "content": "a"}],
          "tools": [{"type": "function", "function": {"name": "f", "parameters": {"z": 1, "a": 2}}}]})",
      context_);
  ASSERT_TRUE(ordered) << ordered.error().message;
  EXPECT_EQ(ordered->input.tools_json,
            R"([{"type":"function","function":{"name":"f","parameters":{"z":1,"a":2}}}])");
}

TEST_F(RequestTest, ChatHoldsCalls) {
  context_.chat = {.tools = true, .reads_tool_calls = true, .call_format = "hermes"};
  json fields = json::parse(R"({"tools": [
      {"type": "function", "function": {"name": "f", "strict": false}},
      {"type": "function", "function": {"name": "g", "strict": true, "parameters": {
        "type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}}}]})");
  const auto held = [&] {
    const auto request = chat(fields);
    EXPECT_TRUE(request) << request.error().message;
    EXPECT_EQ(request->input.tools_json.find("strict"), std::string::npos) << "said to the server alone";
    EXPECT_EQ(request->common.sampling.grammar.kind, GrammarKind::tool_calls);
    return json::parse(request->common.sampling.grammar.text);
  };
  json form = held();  // because one is strict
  EXPECT_EQ(form["required"], false);
  EXPECT_EQ(form["parallel"], true);
  EXPECT_EQ(form["tools"].size(), 2);
  fields["tool_choice"] = "required";
  fields["parallel_tool_calls"] = false;
  form = held();
  EXPECT_EQ(form["required"], true);
  EXPECT_EQ(form["parallel"], false);
  fields["tool_choice"] = {{"type", "function"}, {"function", {{"name", "f"}}}};
  form = held();
  ASSERT_EQ(form["tools"].size(), 1);
  EXPECT_EQ(form["tools"][0]["name"], "f");
  fields.erase("tool_choice");
  fields["response_format"] = {{"type", "json_object"}};
  form = held();  // calls, or an object
  EXPECT_EQ(form["answer"]["kind"], static_cast<int>(GrammarKind::json_object));
  fields.erase("response_format");
  fields["tools"].erase(1);
  const auto loose = chat(fields);
  ASSERT_TRUE(loose);
  EXPECT_TRUE(loose->common.sampling.grammar.empty()) << "nothing is strict, nothing is asked for";
  fields["tools"][0]["function"] = {
      {"name", "f"}, {"strict", true}, {"parameters", {{"patternProperties", json::object()}}}};
  const auto odd = chat(fields);
  ASSERT_FALSE(odd);
  EXPECT_EQ(odd.error().param, "tools");
  EXPECT_NE(odd.error().message.find("patternProperties"), std::string::npos) << odd.error().message;
}

TEST_F(RequestTest, ChatRefusesToolsByName) {
  const auto refusals = [&](std::initializer_list<Refusal> table) {
    for (const Refusal& row : table) {
      const auto request = chat(json::parse(row.fields));
      ASSERT_FALSE(request) << row.fields;
      EXPECT_EQ(request.error().param, row.param) << row.fields << ": " << request.error().message;
      EXPECT_NE(request.error().message.find(row.part), std::string::npos)
          << row.fields << ": " << request.error().message;
    }
  };
  const char* good = R"({"tools":[{"type":"function","function":{"name":"f"}}]})";
  context_.chat = {.tools = true};
  refusals({{good, "tools", "--tool-call-parser"}});
  context_.chat = {.tools = true, .tool_messages = true, .reasoning_effort = true, .reads_tool_calls = true};
  ASSERT_TRUE(chat(json::parse(good)));
  refusals({
      {R"({"tools":{}})", "tools", "a list"},
      {R"({"tools":[7]})", "tools", "tools[0] is 7"},
      {R"({"tools":[{"type":"function"}]})", "tools", "tools[0].function is missing"},
      {R"({"tools":[{"type":"custom","function":{"name":"f"}}]})", "tools", "tools[0].type is \"custom\""},
      {R"({"tools":[{"type":"function","function":{"name":"a\"b"}}]})", "tools", "tools[0].function.name is"},
      {R"({"tools":[{"type":"function","function":{"name":"f","parameters":[]}}]})", "tools", "JSON schema"},
      {R"({"tools":[{"type":"function","function":{"name":"f","strict":true}}]})", "tools",
       "calls cannot be enforced for this model"},
      {R"({"tool_choice":"required","tools":[{"type":"function","function":{"name":"f"}}]})", "tool_choice",
       "calls cannot be enforced for this model"},
      {R"({"tools":[{"type":"function","function":{"name":"f","more":1}}]})", "tools",
       "\"more\" is not a known field"},
      {R"({"tool_choice":"required"})", "tool_choice", "tools is missing"},
      {R"({"tool_choice":{"type":"function","function":{"name":"g"}},
           "tools":[{"type":"function","function":{"name":"f"}}]})",
       "tool_choice", "\"g\", which is not among the tools"},
      {R"({"tool_choice":"any"})", "tool_choice", "must be \"auto\", \"none\", \"required\""},
      {R"({"parallel_tool_calls":1})", "parallel_tool_calls", "true or false"},
      {R"({"reasoning_effort":"low","chat_template_kwargs":{"reasoning_effort":"high"}})", "reasoning_effort",
       "give one"},
      {R"({"messages":[{"role":"user","content":"a","tool_calls":[{}]}]})", "messages[0].tool_calls",
       "assistant"},
      {R"({"messages":[{"role":"tool","content":"a"}]})", "messages[0].tool_call_id", "missing"},
      {R"({"messages":[{"role":"latest_reminder","content":"a"}]})", "messages[0].role", "supported are"},
      {R"({"messages":[{"role":"assistant","tool_calls":[{"function":{"name":"f"}}]}]})",
       "messages[0].tool_calls", "id is missing"},
      {R"({"messages":[{"role":"assistant","tool_calls":[{"id":"c","function":{"name":"f","arguments":"{"}}]}]})",
       "messages[0].tool_calls", "JSON text of an object"},
      {R"({"messages":[{"role":"assistant","tool_calls":[{"id":"c","function":{"name":"f","arguments":"[]"}}]}]})",
       "messages[0].tool_calls", "JSON text of an object"},
      {R"({"messages":[{"role":"assistant"}]})", "messages[0].content", "missing"},
  });
}

TEST_F(RequestTest, ModelIsCheckedFirst) {
  const auto unknown = parse_chat_request(R"({"model":"gpt-4","messages":7})", context_);
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().status, 404);
  EXPECT_EQ(unknown.error().code, "model_not_found");
  EXPECT_NE(unknown.error().message.find("gpt-4"), std::string::npos);
  EXPECT_EQ(parse_chat_request(R"({"messages":7})", context_).error().param, "model");
  EXPECT_EQ(parse_chat_request(R"({"model":7})", context_).error().param, "model");
}

TEST_F(RequestTest, BodiesThatAreNoRequest) {
  for (const std::string body : {"", "{", "[]", "7", "null", "{\"model\":\"m\",}", "{\"a\":NaN}",
                                 "{\"a\":1e400}", "{\"model\":\"\xff\"}", "{\"model\":\"\\ud800\"}", "{}x"}) {
    const auto request = parse_completion_request(body, context_);
    ASSERT_FALSE(request) << body;
    EXPECT_EQ(request.error().status, 400) << body;
    EXPECT_NE(request.error().message.find("body"), std::string::npos) << body;
  }
  const auto deep = parse_completion_request("{\"model\":" + std::string(1000000, '['), context_);
  ASSERT_FALSE(deep);
  EXPECT_NE(deep.error().message.find("64 levels"), std::string::npos);
}

TEST_F(RequestTest, SamplingEdgesAreTaken) {
  for (const double temperature : {0.0, 1e-8, 1.0, 2.0}) {
    for (const double top_p : {0.0, 1e-8, 1.0}) {
      for (const int top_k : {-1, 0, 1}) {
        const auto request =
            completion({{"temperature", temperature}, {"top_p", top_p}, {"top_k", top_k}, {"logprobs", 5}});
        ASSERT_TRUE(request) << request.error().message;
        EXPECT_EQ(request->common.sampling.top_k, top_k);
      }
    }
  }
}

}  // namespace
}  // namespace tandem
