#include "serving/chat_format.h"

#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "serving/chat/deepseek_v4_prompt.h"
#include "serving/chat_template.h"

namespace tandem {

using Json = nlohmann::ordered_json;

namespace {

OutputFormat guess_output(const std::string& text) {
  const auto has = [&](const char* part) { return text.find(part) != std::string::npos; };
  OutputFormat out;
  if (has("<|channel|>") && has("<|message|>")) return {ReasoningFormat::harmony, ToolCallFormat::harmony};
  if (has("</think>")) out.reasoning = ReasoningFormat::trimmed_tags;
  // Qwen3-Coder writes XML into the same tags.
  if (has("<tool_call>") && !has("<function="))
    out.tool_calls = has("<arg_key>") ? ToolCallFormat::glm : ToolCallFormat::hermes;
  return out;
}

// Whether templates get the arguments of past calls as an object, as most want them, or as JSON text.
enum class Arguments { object, text };

// gpt-oss' template looks into contents that are there, null included, and takes the reasoning before a call
// under another name.
void adapt_to_harmony(const ChatMessage& message, Json& out) {
  if (!message.has_content) out.erase("content");
  if (!message.tool_calls.empty() && !message.has_content && !message.reasoning_content.empty())
    out["thinking"] = message.reasoning_content;
}

Json message_json(const ChatMessage& message, Arguments arguments, bool harmony) {
  Json out = {{"role", message.role}, {"content", message.content}};
  // OpenAI's newer name; templates know the older one.
  if (message.role == "developer") out["role"] = "system";
  if (!message.has_content) out["content"] = nullptr;
  if (!message.name.empty()) out["name"] = message.name;
  if (!message.reasoning_content.empty()) out["reasoning_content"] = message.reasoning_content;
  if (!message.tool_call_id.empty()) out["tool_call_id"] = message.tool_call_id;
  for (const ToolCall& call : message.tool_calls) {
    Json function = {{"name", call.name}};
    function["arguments"] =
        arguments == Arguments::object ? Json::parse(call.arguments, nullptr, false) : Json(call.arguments);
    out["tool_calls"].push_back({{"id", call.id}, {"type", "function"}, {"function", std::move(function)}});
  }
  if (harmony) adapt_to_harmony(message, out);
  return out;
}

// A template with what was found out about it.
struct TemplateRenderer {
  std::shared_ptr<const ChatTemplate> chat;
  ChatTemplateSource source;
  bool harmony = false;
  Arguments arguments = Arguments::object;

  Result<ChatPrompt> operator()(const ChatInput& input) const {
    Json list = Json::array();
    for (const ChatMessage& message : input.messages)
      list.push_back(message_json(message, arguments, harmony));
    const std::string messages_json = list.dump();
    TANDEM_ASSIGN(RenderedChat rendered, chat->render({.messages_json = messages_json,
                                                       .tools_json = input.tools_json,
                                                       .add_generation_prompt = input.add_generation_prompt,
                                                       .bos_token = source.bos_token,
                                                       .eos_token = source.eos_token,
                                                       .extra_json = input.kwargs_json}));
    return ChatPrompt{std::move(rendered.text), std::move(rendered.from_request)};
  }
};

constexpr const char* kProbe = "tandem_probe";  // what no template says by itself

// The probes. An id of nine letters and digits: some templates insist on that.
ChatInput probe() {
  ChatInput input;
  input.messages.push_back({.role = "user", .content = "question"});
  return input;
}

ChatInput probe_of_tools() {
  ChatInput input = probe();
  input.tools_json = Json::array({{{"type", "function"},
                                   {"function",
                                    {{"name", kProbe},
                                     {"description", "text"},
                                     {"parameters", {{"type", "object"}, {"properties", Json::object()}}}}}}})
                         .dump();
  return input;
}

ChatInput probe_of_calls() {
  ChatInput input = probe_of_tools();
  input.tools_json.clear();
  input.messages.push_back(
      {.role = "assistant",
       .content = "",
       .tool_calls = {{.id = "probe0001", .name = kProbe, .arguments = R"({"a": "b"})"}}});
  input.messages.push_back({.role = "tool", .content = "result", .tool_call_id = "probe0001"});
  return input;
}

bool says(const Result<ChatPrompt>& prompt, const char* what) {
  return prompt && prompt->text.find(what) != std::string::npos;
}

Result<ChatFormat> from_template(const ChatTemplateSource& source) {
  auto parsed = ChatTemplate::parse(source.text);
  if (!parsed)
    return make_error(parsed.error().code, source.file + ": chat template: " + parsed.error().message);
  ChatFormat out;
  out.output = guess_output(source.text);
  TemplateRenderer render{.chat = std::make_shared<const ChatTemplate>(std::move(*parsed)),
                          .source = source,
                          .harmony = out.output.reasoning == ReasoningFormat::harmony};
  out.features.tools = says(render(probe_of_tools()), kProbe);
  const bool objects = says(render(probe_of_calls()), kProbe);
  if (!objects) render.arguments = Arguments::text;
  out.features.tool_messages = objects || says(render(probe_of_calls()), kProbe);
  // Whether a variable changes the prompt.
  const auto matters = [&](const Json& one, const Json& other) {
    ChatInput input = probe();
    input.kwargs_json = one.dump();
    const auto of_one = render(input);
    input.kwargs_json = other.dump();
    const auto of_other = render(input);
    return of_one && of_other && of_one->text != of_other->text;
  };
  out.features.reasoning_effort = matters({{"reasoning_effort", "low"}}, {{"reasoning_effort", "high"}});
  for (const char* name : {"enable_thinking", "thinking"}) {  // Qwen3, GLM; DeepSeek-V3.1, Granite
    if (out.features.thinking_switch.empty() && matters({{name, false}}, {{name, true}}))
      out.features.thinking_switch = name;
  }
  out.render = std::move(render);
  return out;
}

ChatFormat deepseek_v4(const ChatTemplateSource& source) {
  ChatFormat out;
  out.features = {.tools = true,
                  .tool_messages = true,
                  .reasoning_effort = true,
                  .thinking_switch = "thinking",
                  .latest_reminder = true};
  out.output = {ReasoningFormat::tags, ToolCallFormat::dsml};
  const DeepseekV4Style style{.three_efforts = source.has_dspark};
  out.render = [style](const ChatInput& input) { return render_deepseek_v4(input, style); };
  return out;
}

}  // namespace

Result<ChatFormat> make_chat_format(const ChatTemplateSource& source, const OutputChoice& choice) {
  ChatFormat out;
  if (!source.text.empty()) {
    TANDEM_ASSIGN(out, from_template(source));
  } else if (source.is_deepseek_v4) {
    out = deepseek_v4(source);
  }
  const bool automatic = choice.tool_call_parser == "auto";
  if (choice.reasoning_parser != "auto") {
    const auto named = find_reasoning_format(choice.reasoning_parser);
    if (!named)
      return make_error(ErrorCode::invalid_argument,
                        "reasoning_parser: there is no " + choice.reasoning_parser);
    out.output.reasoning = *named;
  }
  if (!automatic) {
    const auto named = find_tool_call_format(choice.tool_call_parser);
    if (!named)
      return make_error(ErrorCode::invalid_argument,
                        "tool_call_parser: there is no " + choice.tool_call_parser);
    out.output.tool_calls = *named;
  }
  if (out.output.tool_calls == ToolCallFormat::hermes) out.features.call_format = "hermes";
  if (out.output.tool_calls == ToolCallFormat::glm) out.features.call_format = "glm";
  if (out.output.tool_calls == ToolCallFormat::dsml) out.features.call_format = "dsml";
  if (out.output.tool_calls == ToolCallFormat::harmony) out.features.call_format = "harmony";
  out.features.reasons = out.output.reasoning != ReasoningFormat::none;
  out.features.reads_tool_calls = !automatic || out.output.tool_calls != ToolCallFormat::none;
  return out;
}

}  // namespace tandem
