#include "serving/tool_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "grammar/grammar_expression.h"

namespace tandem {

using nlohmann::json;

bool is_tool_name(const json& value) {
  if (!value.is_string()) return false;
  const auto& name = value.get_ref<const std::string&>();
  return !name.empty() && name.size() <= kMaxToolName && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("_-.:/").find(c) != std::string_view::npos;
  });
}

void check_tools_are_supported(FieldReader& fields, const ChatFeatures& features, bool may_call) {
  if (!features.tools) {
    return fields.fail("tools",
                       "tools is not supported: this model's chat template has no place for tools; describe "
                       "them in a message");
  }
  if (!features.reads_tool_calls && may_call) {
    fields.fail("tools",
                "tools is not supported: how this model writes its calls is not known here; start the "
                "server with --tool-call-parser hermes if it writes <tool_call> blocks, or none to get "
                "calls as text");
  }
}

namespace {

void read_name(FieldReader& function, const std::string& name) {
  const json* value = function.take("name");
  if (value != nullptr && is_tool_name(*value)) return;
  function.fail("name",
                fmt::format("{}.name is {}; it must be 1 to {} letters, digits, '_', '-', '.', ':' or '/'",
                            name, value == nullptr ? "missing" : shown(*value), kMaxToolName));
}

// The object under `field`, or nullptr after failing.
const json* read_object(FieldReader& fields, const char* field, const std::string& name) {
  const json* value = fields.take(field);
  if (value != nullptr && value->is_object()) return value;
  fields.fail(field, fmt::format("{}.{} is {}; it must be an object", name, field,
                                 value == nullptr ? "missing" : shown(*value)));
  return nullptr;
}

void read_tool(FieldReader& fields, const json& item, size_t index) {
  const std::string name = fmt::format("tools[{}]", index);
  if (!item.is_object())
    return fields.fail("tools", fmt::format("{} is {}; it must be an object", name, shown(item)));
  FieldReader tool(item, name + ".");
  const auto type = tool.text("type");
  if (type != "function") {
    tool.fail("type", fmt::format("{}.type is {}; only \"function\" is supported", name,
                                  type ? shown(json(*type)) : "missing"));
  }
  if (const json* value = read_object(tool, "function", name)) {
    FieldReader function(*value, name + ".function.");
    read_name(function, name + ".function");
    (void)function.text("description");
    const json* parameters = function.take("parameters");
    if (parameters != nullptr && !parameters->is_object()) {
      function.fail("parameters",
                    fmt::format("{}.function.parameters is {}; it must be a JSON schema, an object", name,
                                shown(*parameters)));
    }
    (void)function.boolean("strict");
    fail_with(tool, "function", function);
  }
  fail_with(fields, "tools", tool);
}

ToolChoice read_choice(FieldReader& fields, bool has_tools) {
  const json* value = fields.take("tool_choice");
  if (value == nullptr || *value == "auto") return {.may_call = has_tools};
  if (*value == "none") return {};
  if (*value == "required") return {.may_call = has_tools, .required = true};
  if (!value->is_object()) {
    fields.fail("tool_choice",
                fmt::format("tool_choice is {}; it must be \"auto\", \"none\", \"required\" or "
                            "an object that names a function",
                            shown(*value)));
    return {};
  }
  FieldReader choice(*value, "tool_choice.");
  choice.only("type", {"\"function\""}, "only a function can be named");
  ToolChoice out{.may_call = has_tools, .required = true};
  if (const json* function = read_object(choice, "function", "tool_choice")) {
    FieldReader inner(*function, "tool_choice.function.");
    out.name = inner.text("name").value_or("");
    if (out.name.empty()) inner.fail("name", "tool_choice.function.name is missing");
    fail_with(choice, "function", inner);
  }
  fail_with(fields, "tool_choice", choice);
  return out;
}

}  // namespace

void hold_calls(FieldReader& fields, const nlohmann::ordered_json& tools, const ToolChoice& choice,
                const ChatFeatures& features, bool parallel, GrammarSpec& grammar) {
  if (!choice.may_call || !fields.ok()) return;
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  bool any_strict = false;
  for (const auto& tool : tools) {
    const auto& function = tool["function"];
    if (!choice.name.empty() && function["name"] != choice.name) continue;
    const bool strict = function.value("strict", nlohmann::ordered_json()) == true;
    any_strict = any_strict || strict;
    list.push_back({{"name", function["name"]},
                    {"strict", strict},
                    {"parameters", function.value("parameters", nlohmann::ordered_json())}});
  }
  if (list.empty()) {
    return fields.fail("tool_choice", fmt::format("tool_choice names {}, which is not among the tools",
                                                  shown(json(choice.name))));
  }
  if (!choice.required && !any_strict && grammar.empty()) return;
  if (features.call_format.empty()) {
    return fields.fail(choice.required ? "tool_choice" : "tools",
                       "calls cannot be enforced for this model: how it writes them is not known here; leave "
                       "strict and forms of answers out, and give tool_choice auto");
  }
  nlohmann::ordered_json form = {{"format", features.call_format},
                                 {"required", choice.required},
                                 {"parallel", parallel && choice.name.empty()},
                                 {"reasoning", features.reasons},
                                 {"tools", std::move(list)}};
  // What the answer is if it is no call.
  if (!grammar.empty()) form["answer"] = {{"kind", static_cast<int>(grammar.kind)}, {"text", grammar.text}};
  grammar.kind = GrammarKind::tool_calls;
  grammar.text = form.dump();
  if (const auto rules = grammar_rules(grammar); !rules)
    fields.fail("tools", "tools: " + rules.error().message);
}

void read_tools(FieldReader& fields, std::string_view body, const ChatFeatures& features, ChatRequest& out) {
  const json* tools = fields.take("tools");
  const bool has_tools = tools != nullptr && !(tools->is_array() && tools->empty());
  if (has_tools && (!tools->is_array() || tools->size() > kMaxTools)) {
    fields.fail("tools",
                fmt::format("tools is {}; it must be a list of at most {} tools", shown(*tools), kMaxTools));
  }
  const ToolChoice choice = read_choice(fields, has_tools);
  out.may_call_tools = choice.may_call;
  if (choice.required && !has_tools)
    fields.fail("tool_choice", "tool_choice asks for a call, and tools is missing");
  out.parallel_tool_calls = fields.boolean("parallel_tool_calls").value_or(true);
  if (!has_tools || !fields.ok()) return;
  check_tools_are_supported(fields, features, out.may_call_tools);
  for (size_t i = 0; i < tools->size() && fields.ok(); ++i) read_tool(fields, (*tools)[i], i);
  // With tool_choice none the model does not hear of tools at all: the surest way not to call any.
  if (!fields.ok() || !out.may_call_tools) return;
  nlohmann::ordered_json written = nlohmann::ordered_json::parse(body)["tools"];
  hold_calls(fields, written, choice, features, out.parallel_tool_calls, out.common.sampling.grammar);
  for (auto& tool : written) tool["function"].erase("strict");  // said to the server, not to the model
  out.input.tools_json = written.dump();
}

void read_tool_calls(FieldReader& fields, const std::string& name, const ChatFeatures& features,
                     std::vector<ToolCall>& out) {
  const json* calls = fields.take("tool_calls");
  if (calls == nullptr || (calls->is_array() && calls->empty())) return;
  if (!features.tool_messages) {
    return fields.fail("tool_calls",
                       name +
                           ".tool_calls is not supported: this model's chat template has no place "
                           "for tool calls; send the text in content");
  }
  if (!calls->is_array()) {
    return fields.fail("tool_calls",
                       fmt::format("{}.tool_calls is {}; it must be a list", name, shown(*calls)));
  }
  for (size_t i = 0; i < calls->size() && fields.ok(); ++i) {
    const std::string call_name = fmt::format("{}.tool_calls[{}]", name, i);
    const json& item = (*calls)[i];
    if (!item.is_object()) {
      return fields.fail("tool_calls", fmt::format("{} is {}; it must be an object", call_name, shown(item)));
    }
    FieldReader call(item, call_name + ".");
    ToolCall& read = out.emplace_back();
    read.id = call.text("id").value_or("");
    if (read.id.empty()) call.fail("id", call_name + ".id is missing: give the id that the call came with");
    call.only("type", {"\"function\""}, "only functions are supported");
    call.accept({"index"});  // a stream's deltas have it, and some clients send them back
    if (const json* value = read_object(call, "function", call_name)) {
      FieldReader function(*value, call_name + ".function.");
      read_name(function, call_name + ".function");
      const json* called = function.take("name");
      if (called != nullptr && called->is_string()) read.name = called->get<std::string>();
      read.arguments = function.text("arguments").value_or("");
      if (read.arguments.empty()) read.arguments = "{}";
      if (!json::parse(read.arguments, nullptr, false).is_object()) {
        function.fail("arguments",
                      fmt::format("{}.function.arguments is {}; it must be the JSON text of an object",
                                  call_name, shown(json(read.arguments))));
      }
      fail_with(call, "function", function);
    }
    fail_with(fields, "tool_calls", call);
  }
}

void read_tool_call_id(FieldReader& fields, const std::string& name, const ChatFeatures& features,
                       std::string& out) {
  if (!features.tool_messages) {
    fields.fail("role",
                name +
                    ".role is \"tool\", and this model's chat template has no place for results of tools: "
                    "send the text as a user");
  }
  out = fields.text("tool_call_id").value_or("");
  if (out.empty()) {
    fields.fail("tool_call_id", name + ".tool_call_id is missing: give the id of the call that this answers");
  }
}

}  // namespace tandem
