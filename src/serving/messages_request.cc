#include "serving/messages_request.h"

#include <fmt/format.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "grammar/grammar_expression.h"
#include "serving/message_blocks.h"
#include "serving/request_fields.h"
#include "serving/tool_fields.h"

namespace tandem {

using nlohmann::json;
using nlohmann::ordered_json;

namespace {

// A declaration as OpenAI has it, which is what prompts are made of. `written`: the tool as it came, keys in
// their order.
ordered_json read_tool(FieldReader& fields, const json& item, const ordered_json& written, size_t index) {
  const std::string name = fmt::format("tools[{}]", index);
  if (!item.is_object()) {
    fields.fail("tools", fmt::format("{} is {}; it must be an object", name, shown(item)));
    return {};
  }
  FieldReader tool(item, name + ".");
  if (const auto type = tool.text("type"); type && *type != "custom") {
    tool.fail("type", fmt::format("{}.type is {}; only \"custom\" is supported: this server runs no tools "
                                  "of its own",
                                  name, shown(json(*type))));
  }
  const json* tool_name = tool.take("name");
  if (tool_name == nullptr || !is_tool_name(*tool_name)) {
    tool.fail("name", fmt::format("{}.name is {}; it must be 1 to {} letters, digits, '_', '-', '.', ':' or "
                                  "'/'",
                                  name, tool_name == nullptr ? "missing" : shown(*tool_name), kMaxToolName));
  }
  const auto description = tool.text("description");
  const json* schema = tool.take("input_schema");
  if (schema == nullptr || !schema->is_object()) {
    tool.fail("input_schema", fmt::format("{}.input_schema is {}; it must be a JSON schema, an object", name,
                                          schema == nullptr ? "missing" : shown(*schema)));
  }
  const bool strict = tool.boolean("strict").value_or(false);
  tool.only("allowed_callers", {R"(["direct"])"}, "only the client calls for tools here: leave it out");
  tool.refuse("defer_loading", "all tools are in the prompt");
  tool.refuse("input_examples", "put them into the description");
  tool.accept({"cache_control", "eager_input_streaming"});  // the prefix cache needs no marks
  fail_with(fields, "tools", tool);
  if (!fields.ok()) return {};
  ordered_json function = {{"name", written["name"]}};
  if (description) function["description"] = *description;
  function["parameters"] = written["input_schema"];
  if (strict) function["strict"] = true;
  return {{"type", "function"}, {"function", std::move(function)}};
}

ToolChoice read_choice(FieldReader& fields, bool has_tools, ChatRequest& out) {
  ToolChoice wanted{.may_call = has_tools};
  const json* value = fields.take("tool_choice");
  if (value == nullptr) return wanted;
  if (!value->is_object()) {
    fields.fail("tool_choice", fmt::format("tool_choice is {}; it must be an object", shown(*value)));
    return wanted;
  }
  FieldReader choice(*value, "tool_choice.");
  const std::string type = choice.text("type").value_or("");
  out.parallel_tool_calls = !choice.boolean("disable_parallel_tool_use").value_or(false);
  if (type == "none") {
    wanted.may_call = false;
  } else if (type == "any" || type == "tool") {
    wanted.required = true;
    if (type == "tool") wanted.name = choice.text("name").value_or("");
    if (type == "tool" && wanted.name.empty()) choice.fail("name", "tool_choice.name is missing");
    if (!has_tools) choice.fail("type", "tool_choice asks for a call, and tools is missing");
  } else if (type != "auto") {
    choice.fail("type", fmt::format("tool_choice.type is {}; it must be auto, any, tool or none",
                                    type.empty() ? "missing" : shown(json(type))));
  }
  fail_with(fields, "tool_choice", choice);
  return wanted;
}

void read_message_tools(FieldReader& fields, const ordered_json& written, const ChatFeatures& features,
                        ChatRequest& out) {
  const json* tools = fields.take("tools");
  const bool has_tools = tools != nullptr && !(tools->is_array() && tools->empty());
  if (has_tools && (!tools->is_array() || tools->size() > kMaxTools)) {
    fields.fail("tools",
                fmt::format("tools is {}; it must be a list of at most {} tools", shown(*tools), kMaxTools));
  }
  const ToolChoice choice = read_choice(fields, has_tools, out);
  out.may_call_tools = choice.may_call;
  if (!has_tools || !fields.ok()) return;
  check_tools_are_supported(fields, features, out.may_call_tools);
  ordered_json list = ordered_json::array();
  for (size_t i = 0; i < tools->size() && fields.ok(); ++i) {
    list.push_back(read_tool(fields, (*tools)[i], written["tools"][i], i));
  }
  // With none the model does not hear of tools at all: the surest way not to call any.
  if (!fields.ok() || !out.may_call_tools) return;
  hold_calls(fields, list, choice, features, out.parallel_tool_calls, out.common.sampling.grammar);
  for (ordered_json& tool : list) tool["function"].erase("strict");  // said to the server, not to the model
  out.input.tools_json = list.dump();
}

// Thinking is a variable of the template, where it has one.
// `max_tokens`: of reasoning and text together; 0 where nothing is answered.
void read_thinking(FieldReader& fields, const ChatFeatures& features, uint32_t max_tokens, json& variables,
                   GrammarSpec& grammar) {
  const json* value = fields.take("thinking");
  if (value == nullptr) return;
  if (!value->is_object()) {
    return fields.fail("thinking", fmt::format("thinking is {}; it must be an object", shown(*value)));
  }
  FieldReader thinking(*value, "thinking.");
  const std::string type = thinking.text("type").value_or("");
  const bool wanted = type == "enabled" || type == "adaptive";
  if (!wanted && type != "disabled") {
    thinking.fail("type", fmt::format("thinking.type is {}; it must be enabled, adaptive or disabled",
                                      type.empty() ? "missing" : shown(json(type))));
  }
  const auto budget = thinking.integer("budget_tokens", 1, std::numeric_limits<int32_t>::max());
  if (budget && wanted) grammar.reasoning_budget = static_cast<uint32_t>(*budget);
  thinking.only("display", {"\"summarized\""}, "reasoning is given as it is: leave it out");
  if (!features.thinking_switch.empty()) {
    if (!variables.contains(features.thinking_switch)) variables[features.thinking_switch] = wanted;
  } else if (wanted && !features.reasons) {
    thinking.fail("type", "thinking.type is \"" + type +
                              "\", and this model does not think: leave thinking out, or give disabled");
  } else if (!wanted && features.reasons) {
    thinking.fail("type",
                  "thinking.type is \"disabled\", and this model's chat template has no switch for it: "
                  "leave it out");
  }
  if (budget && max_tokens > 0 && static_cast<uint64_t>(*budget) >= max_tokens) {
    thinking.fail("budget_tokens",
                  fmt::format("thinking.budget_tokens is {}; it must be below max_tokens, which "
                              "is {}: the text comes out of it too",
                              *budget, max_tokens));
  }
  fail_with(fields, "thinking", thinking);
}

void read_output_config(FieldReader& fields, const ordered_json& written, const ChatFeatures& features,
                        json& variables, GrammarSpec& grammar) {
  const json* value = fields.take("output_config");
  if (value == nullptr) return;
  if (!value->is_object()) {
    return fields.fail("output_config",
                       fmt::format("output_config is {}; it must be an object", shown(*value)));
  }
  FieldReader config(*value, "output_config.");
  if (const auto effort = config.text("effort")) {
    if (!features.reasoning_effort) {
      config.fail("effort",
                  "output_config.effort is not supported: this model's chat template has no such "
                  "switch; leave it out");
    }
    variables["reasoning_effort"] = *effort;
  }
  if (const json* format = config.take("format")) {
    const bool good = format->is_object() && format->value("type", json()) == "json_schema" &&
                      format->value("schema", json()).is_object();
    if (!good) {
      config.fail("format", fmt::format("output_config.format is {}; it must be an object with the type "
                                        "json_schema and a schema",
                                        shown(*format)));
    } else {
      grammar.kind = GrammarKind::json_schema;
      grammar.text = written["output_config"]["format"]["schema"].dump();
      if (const auto rules = grammar_rules(grammar); !rules)
        config.fail("format", "output_config.format.schema: " + rules.error().message);
    }
  }
  fail_with(fields, "output_config", config);
}

void read_variables(FieldReader& fields, json& out) {
  const json* kwargs = fields.take("chat_template_kwargs");
  if (kwargs == nullptr) return;
  if (kwargs->is_object()) {
    out = *kwargs;
  } else {
    fields.fail("chat_template_kwargs",
                fmt::format("chat_template_kwargs is {}; it must be an object", shown(*kwargs)));
  }
}

// What makes the prompt.
void read_prompt_part(FieldReader& fields, const ordered_json& written, const RequestContext& context,
                      ChatRequest& out) {
  json variables = json::object();
  read_variables(fields, variables);
  const uint32_t max_tokens = out.common.max_tokens_given ? out.common.sampling.max_tokens : 0;
  read_thinking(fields, context.chat, max_tokens, variables, out.common.sampling.grammar);
  read_output_config(fields, written, context.chat, variables, out.common.sampling.grammar);
  out.input.kwargs_json = variables.dump();
  read_message_tools(fields, written, context.chat, out);
  read_system(fields, out.input);
  read_blocks(fields, written, context.chat, out.input);
  // Who asked, and hints for caches and queues: without effect on an answer.
  fields.accept({"cache_control", "metadata", "user_profile_id", "workspace_id"});
  fields.only("speed", {"\"standard\""}, "there is one speed here: leave it out");
  fields.refuse("container", "this server runs no code");
  fields.refuse("mcp_servers", "this server runs no tools: call them in the client");
  fields.refuse("context_management", "send the messages that the model shall see");
}

void read_answer_part(FieldReader& fields, ChatRequest& out) {
  SamplingParams& sampling = out.common.sampling;
  const auto number = [&](std::string_view name, float& field) {
    if (const auto value = fields.number(name, 0, 1)) field = static_cast<float>(*value);
  };
  number("temperature", sampling.temperature);
  number("top_p", sampling.top_p);
  const int64_t most = std::numeric_limits<int32_t>::max();
  if (const auto value = fields.integer("top_k", 0, most)) sampling.top_k = static_cast<int32_t>(*value);
  if (const auto value = fields.integer("seed", INT64_MIN, INT64_MAX))
    sampling.seed = static_cast<uint64_t>(*value);
  const auto max_tokens = fields.integer("max_tokens", 1, most);
  if (!max_tokens) fields.fail("max_tokens", "max_tokens is missing: give the most tokens of an answer");
  sampling.max_tokens = static_cast<uint32_t>(max_tokens.value_or(1));
  out.common.max_tokens_given = true;
  read_stops(fields, "stop_sequences", out.common);
  read_timeout(fields, out.common);
  out.common.stream = fields.boolean("stream").value_or(false);
  fields.only("service_tier", {"\"auto\"", "\"standard_only\""}, "there is one tier here: leave it out");
  fields.refuse("inference_geo", "answers are made where this server runs");
  fields.refuse("diagnostics", "leave it out");
}

ApiResult<ChatRequest> parse(std::string_view body, const RequestContext& context, bool answer) {
  auto parsed = parse_body(body);
  if (!parsed) return std::unexpected(std::move(parsed.error()));
  FieldReader fields(*parsed);
  if (auto error = check_model(fields, context)) return std::unexpected(std::move(*error));
  const ordered_json written = ordered_json::parse(body);

  ChatRequest out;
  out.common.sampling = context.defaults;
  if (answer) read_answer_part(fields, out);
  read_prompt_part(fields, written, context, out);
  if (!fields.finish()) return std::unexpected(fields.take_error());
  return out;
}

}  // namespace

ApiResult<ChatRequest> parse_messages_request(std::string_view body, const RequestContext& context) {
  return parse(body, context, true);
}

ApiResult<ChatRequest> parse_count_tokens_request(std::string_view body, const RequestContext& context) {
  return parse(body, context, false);
}

}  // namespace tandem
