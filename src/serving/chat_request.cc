// parse_chat_request: see openai_request.h.
#include <fmt/format.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "serving/openai_request.h"
#include "serving/request_fields.h"

namespace tandem {

using nlohmann::json;

namespace {

constexpr int64_t kMaxTopLogprobs = 20;  // OpenAI's limit

// Parts are joined by a newline, as vLLM does for templates that take a string.
bool read_content(FieldReader& fields, const std::string& name, const json* value, std::string& out) {
  if (value != nullptr && value->is_string()) {
    out = value->get<std::string>();
    return true;
  }
  if (value == nullptr || !value->is_array() || value->empty()) {
    fields.fail("content", fmt::format("{} is {}; it must be a string or a list of text parts", name,
                                       value == nullptr ? "missing" : shown(*value)));
    return false;
  }
  for (size_t i = 0; i < value->size(); ++i) {
    const json& part = (*value)[i];
    const json type = part.is_object() ? part.value("type", json()) : json();
    const json text = part.is_object() ? part.value("text", json()) : json();
    if (type != json("text")) {
      fields.fail("content",
                  fmt::format("{}[{}] has the type {}; only \"text\" is supported", name, i, shown(type)));
      return false;
    }
    if (!text.is_string()) {
      fields.fail("content", fmt::format("{}[{}].text is {}; it must be a string", name, i, shown(text)));
      return false;
    }
    if (i != 0) out += '\n';
    out += text.get_ref<const std::string&>();
  }
  return true;
}

std::optional<ApiError> read_message(const json& item, size_t index, ChatMessage& out) {
  const std::string name = fmt::format("messages[{}]", index);
  if (!item.is_object()) {
    return ApiError{.message = fmt::format("{} is {}; it must be an object", name, shown(item)),
                    .param = "messages"};
  }
  FieldReader fields(item, name + ".");
  out.role = fields.text("role").value_or("");
  if (out.role == "developer") out.role = "system";  // OpenAI's newer name; templates know the older one
  if (fields.ok() && out.role != "system" && out.role != "user" && out.role != "assistant") {
    fields.fail("role", fmt::format("{}.role is {}; supported are system, developer, user and assistant",
                                    name, shown(json(out.role))));
  }
  // Clients send a reply's message back as it came, with the fields that it did not use.
  for (const char* unused :
       {"tool_calls", "tool_call_id", "function_call", "audio", "annotations", "reasoning_content"}) {
    fields.refuse(unused, "send the text in content");
  }
  fields.refuse("refusal", "send the text in content");
  out.name = fields.text("name").value_or("");
  if (fields.ok()) read_content(fields, name + ".content", fields.take("content"), out.content);
  if (fields.finish()) return std::nullopt;
  return fields.take_error();
}

void read_messages(FieldReader& fields, ChatRequest& out) {
  const json* value = fields.take("messages");
  if (value == nullptr || !value->is_array() || value->empty()) {
    return fields.fail("messages", fmt::format("messages is {}; it must be a list of at least one message",
                                               value == nullptr ? "missing" : shown(*value)));
  }
  for (size_t i = 0; i < value->size(); ++i) {
    if (auto error = read_message((*value)[i], i, out.messages.emplace_back())) {
      return fields.fail(error->param, error->message);
    }
  }
}

void read_max_tokens(FieldReader& fields, CommonRequest& out) {
  const auto newer = fields.integer("max_completion_tokens", 1, std::numeric_limits<int32_t>::max());
  if (newer && out.max_tokens_given && static_cast<uint32_t>(*newer) != out.sampling.max_tokens) {
    fields.fail("max_completion_tokens",
                fmt::format("max_completion_tokens is {} and max_tokens is {}: give one of them", *newer,
                            out.sampling.max_tokens));
  }
  if (newer) {
    out.sampling.max_tokens = static_cast<uint32_t>(*newer);
    out.max_tokens_given = true;
  }
  // The rest of the context: cut to it once the prompt is known.
  if (!out.max_tokens_given) out.sampling.max_tokens = std::numeric_limits<int32_t>::max();
  if (out.sampling.min_tokens > out.sampling.max_tokens) {
    fields.fail("min_tokens", fmt::format("min_tokens is {}; it must be at most max_tokens, which is {}",
                                          out.sampling.min_tokens, out.sampling.max_tokens));
  }
}

void refuse_what_chat_lacks(FieldReader& fields) {
  fields.refuse("tools", "tool calls are not available; describe the tools in a message");
  fields.only("tool_choice", {"\"none\"", "\"auto\""}, "tool calls are not available: leave it out");
  fields.accept({"parallel_tool_calls"});  // says nothing without tools
  fields.refuse("functions", "tool calls are not available; describe the tools in a message");
  fields.only("function_call", {"\"none\"", "\"auto\""}, "tool calls are not available: leave it out");
  fields.only("response_format", {R"({"type":"text"})"}, "structured output is not available; leave it out");
  fields.only("modalities", {R"(["text"])"}, "only text is available: leave it out");
  fields.refuse("audio", "only text is available");
  fields.refuse("prediction", "leave it out: answers are generated from the messages alone");
  fields.refuse("web_search_options", "there is no search here");
  fields.refuse("reasoning_effort", "use chat_template_kwargs if the model's template has a switch");
  fields.refuse("verbosity", "ask for it in a message");
  fields.refuse("store", "answers are not stored");
  fields.refuse("echo", "use /v1/completions");
  fields.refuse("add_special_tokens", "the chat template writes them");
  fields.refuse("continue_final_message", "use /v1/completions");
  fields.refuse("chat_template",
                "the template comes from the checkpoint; use chat_template_kwargs for its variables");
  fields.refuse("documents", "put their text into a message");
}

}  // namespace

ApiResult<ChatRequest> parse_chat_request(std::string_view body, const RequestContext& context) {
  auto parsed = parse_body(body);
  if (!parsed) return std::unexpected(std::move(parsed.error()));
  FieldReader fields(*parsed);
  if (auto error = check_model(fields, context)) return std::unexpected(std::move(*error));

  ChatRequest out;
  read_common(fields, context, out.common);
  read_max_tokens(fields, out.common);
  read_messages(fields, out);
  const bool logprobs = fields.boolean("logprobs").value_or(false);
  const auto top = fields.integer("top_logprobs", 0, kMaxTopLogprobs);
  if (top && !logprobs) fields.fail("top_logprobs", "top_logprobs needs logprobs to be true");
  if (logprobs) out.common.sampling.top_logprobs = static_cast<int32_t>(top.value_or(0));
  out.add_generation_prompt = fields.boolean("add_generation_prompt").value_or(true);
  if (const json* kwargs = fields.take("chat_template_kwargs")) {
    if (kwargs->is_object()) {
      out.template_kwargs = kwargs->dump();
    } else {
      fields.fail("chat_template_kwargs",
                  fmt::format("chat_template_kwargs is {}; it must be an object", shown(*kwargs)));
    }
  }
  refuse_what_chat_lacks(fields);
  if (!fields.finish()) return std::unexpected(fields.take_error());
  return out;
}

}  // namespace tandem
