#include "serving/responses_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "grammar/grammar_expression.h"
#include "serving/request_fields.h"
#include "serving/response_items.h"
#include "serving/tool_fields.h"

namespace tandem {

using nlohmann::json;
using nlohmann::ordered_json;

namespace {

constexpr int64_t kMaxTopLogprobs = 20;  // OpenAI's limit

// This API writes a function's declaration without the object around it that chat has.
ordered_json as_chat_tool(const ordered_json& tool) {
  if (!tool.is_object() || tool.value("type", ordered_json()) != "function") return tool;
  ordered_json function = tool;
  function.erase("type");
  return {{"type", "function"}, {"function", std::move(function)}};
}

void read_function_tools(FieldReader& fields, const ordered_json& written, const ChatFeatures& features,
                         ChatRequest& out) {
  fields.accept({"tools", "tool_choice", "parallel_tool_calls"});
  ordered_json as_chat = ordered_json::object();
  for (const char* name : {"tools", "tool_choice", "parallel_tool_calls"}) {
    if (written.contains(name)) as_chat[name] = written[name];
  }
  if (as_chat.contains("tools") && as_chat["tools"].is_array()) {
    for (ordered_json& tool : as_chat["tools"]) tool = as_chat_tool(tool);
  }
  if (as_chat.contains("tool_choice") && as_chat["tool_choice"].is_object())
    as_chat["tool_choice"] = as_chat_tool(as_chat["tool_choice"]);
  const std::string text = as_chat.dump();
  const json parsed = json::parse(text);
  FieldReader tools(parsed);
  read_tools(tools, text, features, out);
  if (!tools.ok()) {
    const ApiError error = tools.take_error();
    fields.fail(error.param, error.message);
  }
}

void read_text_config(FieldReader& fields, const ordered_json& written, GrammarSpec& grammar) {
  const json* value = fields.take("text");
  if (value == nullptr) return;
  if (!value->is_object())
    return fields.fail("text", fmt::format("text is {}; it must be an object", shown(*value)));
  FieldReader text(*value, "text.");
  text.only("verbosity", {"\"medium\""}, "ask for it in the instructions");
  const json* given = text.take("format");
  if (given != nullptr && !given->is_object()) {
    text.fail("format", fmt::format("text.format is {}; it must be an object", shown(*given)));
  } else if (given != nullptr) {
    FieldReader format(*given, "text.format.");
    const std::string type = format.text("type").value_or("");
    if (type == "json_object") {
      grammar.kind = GrammarKind::json_object;
    } else if (type == "json_schema") {
      // The schema is kept whether it is called strict or not.
      format.accept({"name", "description", "strict"});
      const json* schema = format.take("schema");
      if (schema == nullptr || !schema->is_object()) {
        format.fail("schema", fmt::format("text.format.schema is {}; it must be a JSON schema",
                                          schema == nullptr ? "missing" : shown(*schema)));
      } else {
        grammar.kind = GrammarKind::json_schema;
        grammar.text = written["text"]["format"]["schema"].dump();
        if (const auto rules = grammar_rules(grammar); !rules)
          format.fail("schema", "text.format.schema: " + rules.error().message);
      }
    } else if (type != "text") {
      format.fail("type", fmt::format("text.format.type is {}; it must be text, json_object or json_schema",
                                      type.empty() ? "missing" : shown(json(type))));
    }
    fail_with(text, "format", format);
  }
  fail_with(fields, "text", text);
}

void read_reasoning_config(FieldReader& fields, const ChatFeatures& features, std::string& kwargs_json) {
  json variables = json::object();
  if (const json* kwargs = fields.take("chat_template_kwargs")) {
    if (kwargs->is_object()) {
      variables = *kwargs;
    } else {
      fields.fail("chat_template_kwargs",
                  fmt::format("chat_template_kwargs is {}; it must be an object", shown(*kwargs)));
    }
  }
  if (const json* value = fields.take("reasoning")) {
    if (!value->is_object())
      return fields.fail("reasoning", fmt::format("reasoning is {}; it must be an object", shown(*value)));
    FieldReader reasoning(*value, "reasoning.");
    if (const auto effort = reasoning.text("effort")) {
      if (!features.reasoning_effort) {
        reasoning.fail("effort",
                       "reasoning.effort is not supported: this model's chat template has no such "
                       "switch; use chat_template_kwargs if it has another");
      }
      variables["reasoning_effort"] = *effort;
    }
    for (const char* name : {"summary", "generate_summary"})
      reasoning.refuse(name, "reasoning is given as it is, as reasoning_text");
    fail_with(fields, "reasoning", reasoning);
  }
  kwargs_json = variables.dump();
}

// What is given beside the answer itself.
void read_include(FieldReader& fields, ChatRequest& out) {
  bool logprobs = false;
  if (const json* list = fields.take("include")) {
    for (const json& item : list->is_array() ? *list : json::array({*list})) {
      if (item == "message.output_text.logprobs") {
        logprobs = true;
      } else if (item != "reasoning.encrypted_content") {  // reasoning is there in plain text
        fields.fail("include", fmt::format("include holds {}; supported are message.output_text.logprobs and "
                                           "reasoning.encrypted_content",
                                           shown(item)));
      }
    }
  }
  const auto top = fields.integer("top_logprobs", 0, kMaxTopLogprobs);
  if (top && *top > 0 && !logprobs) {
    fields.fail("top_logprobs", "top_logprobs needs include to hold message.output_text.logprobs");
  }
  if (logprobs) out.common.sampling.top_logprobs = static_cast<int32_t>(top.value_or(0));
}

void read_answer_part(FieldReader& fields, ChatRequest& out) {
  SamplingParams& sampling = out.common.sampling;
  if (const auto value = fields.number("temperature", 0, 2))
    sampling.temperature = static_cast<float>(*value);
  if (const auto value = fields.number("top_p", 0, 1)) sampling.top_p = static_cast<float>(*value);
  read_timeout(fields, out.common);
  if (const auto value = fields.integer("seed", INT64_MIN, INT64_MAX))
    sampling.seed = static_cast<uint64_t>(*value);
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  const auto max_tokens = fields.integer("max_output_tokens", 1, kMost);
  out.common.max_tokens_given = max_tokens.has_value();
  // The rest of the context: cut to it once the prompt is known.
  sampling.max_tokens = static_cast<uint32_t>(max_tokens.value_or(kMost));
  out.common.stream = fields.boolean("stream").value_or(false);
  if (const json* value = fields.take("stream_options"); value != nullptr && value->is_object()) {
    FieldReader options(*value, "stream_options.");
    options.only("include_obfuscation", {"false"}, "streams are not padded here: leave it out");
    fail_with(fields, "stream_options", options);
  }
}

void refuse_what_this_api_lacks(FieldReader& fields) {
  // Who asked, and hints for caches and queues: without effect on an answer.
  fields.accept({"user", "metadata", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
                 "prompt_cache_options"});
  fields.only("service_tier", {"\"auto\"", "\"default\""}, "there is one tier here: leave it out");
  fields.only("truncation", {"\"disabled\""}, "nothing is left out of a conversation here: shorten it");
  fields.refuse("store", "answers are not stored; give store: false or leave it out");
  fields.refuse("previous_response_id", "answers are not stored: send the conversation as input");
  fields.refuse("conversation", "conversations are not stored: send it as input");
  fields.refuse("background", "answers are made while the client waits");
  fields.refuse("prompt", "prompts are not stored: send instructions and input");
  fields.refuse("max_tool_calls", "the client calls the tools here, and can count");
  fields.refuse("context_management", "send the items that the model shall see");
  fields.refuse("moderation", "answers are not judged here");
}

// `written`: the request. What an answer repeats of it, with defaults as the client reads them.
std::string echo_of(const ordered_json& written, const ChatRequest& chat) {
  const auto given = [&](const char* name, ordered_json otherwise) {
    const auto found = written.find(name);
    return found == written.end() || found->is_null() ? otherwise : *found;
  };
  const SamplingParams& sampling = chat.common.sampling;
  ordered_json out;
  out["instructions"] = given("instructions", nullptr);
  out["max_output_tokens"] = given("max_output_tokens", nullptr);
  out["metadata"] = given("metadata", ordered_json::object());
  out["parallel_tool_calls"] = chat.parallel_tool_calls;
  out["previous_response_id"] = nullptr;
  out["reasoning"] = given("reasoning", {{"effort", nullptr}, {"summary", nullptr}});
  out["service_tier"] = "default";
  out["store"] = false;
  out["temperature"] = given("temperature", as_written(sampling.temperature));
  out["text"] = given("text", {{"format", {{"type", "text"}}}});
  out["tool_choice"] = given("tool_choice", "auto");
  out["tools"] = given("tools", ordered_json::array());
  out["top_logprobs"] = std::max(0, sampling.top_logprobs);
  out["top_p"] = given("top_p", as_written(sampling.top_p));
  out["truncation"] = "disabled";
  out["user"] = given("user", nullptr);
  return out.dump();
}

}  // namespace

ApiResult<ResponsesRequest> parse_responses_request(std::string_view body, const RequestContext& context) {
  auto parsed = parse_body(body);
  if (!parsed) return std::unexpected(std::move(parsed.error()));
  FieldReader fields(*parsed);
  if (auto error = check_model(fields, context)) return std::unexpected(std::move(*error));
  const ordered_json written = ordered_json::parse(body);

  ResponsesRequest out;
  ChatRequest& chat = out.chat;
  chat.common.sampling = context.defaults;
  read_answer_part(fields, chat);
  read_include(fields, chat);
  read_text_config(fields, written, chat.common.sampling.grammar);
  read_reasoning_config(fields, context.chat, chat.input.kwargs_json);
  read_function_tools(fields, written, context.chat, chat);
  read_input(fields, context.chat, chat.input);
  refuse_what_this_api_lacks(fields);
  if (!fields.finish()) return std::unexpected(fields.take_error());
  out.echo_json = echo_of(written, chat);
  return out;
}

}  // namespace tandem
