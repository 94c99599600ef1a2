// parse_chat_request: see openai_request.h.
#include <fmt/format.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "serving/openai_request.h"
#include "serving/request_fields.h"
#include "serving/tool_fields.h"

namespace tandem {

using nlohmann::json;

namespace {

constexpr int64_t kMaxTopLogprobs = 20;  // OpenAI's limit

// Parts are joined by a newline, as vLLM does for templates that take a string.
void read_content(FieldReader& fields, const std::string& name, const json* value, std::string& out) {
  if (value != nullptr && value->is_string()) {
    out = value->get<std::string>();
    return;
  }
  if (value == nullptr || !value->is_array() || value->empty()) {
    return fields.fail("content", fmt::format("{} is {}; it must be a string or a list of text parts", name,
                                              value == nullptr ? "missing" : shown(*value)));
  }
  for (size_t i = 0; i < value->size(); ++i) {
    const json& part = (*value)[i];
    const json type = part.is_object() ? part.value("type", json()) : json();
    const json text = part.is_object() ? part.value("text", json()) : json();
    if (type != json("text")) {
      return fields.fail(
          "content", fmt::format("{}[{}] has the type {}; only \"text\" is supported", name, i, shown(type)));
    }
    if (!text.is_string()) {
      return fields.fail("content",
                         fmt::format("{}[{}].text is {}; it must be a string", name, i, shown(text)));
    }
    if (i != 0) out += '\n';
    out += text.get_ref<const std::string&>();
  }
}

void read_role(FieldReader& fields, const std::string& name, const ChatFeatures& features, std::string& out) {
  out = fields.text("role").value_or("");
  if (!fields.ok()) return;
  for (const char* known : {"system", "developer", "user", "assistant", "tool"}) {
    if (out == known) return;
  }
  if (features.latest_reminder && out == "latest_reminder") return;
  fields.fail("role", fmt::format("{}.role is {}; supported are system, developer, user, assistant{}", name,
                                  shown(json(out)),
                                  features.latest_reminder ? ", tool and latest_reminder" : " and tool"));
}

std::optional<ApiError> read_message(const json& item, size_t index, const ChatFeatures& features,
                                     ChatMessage& out) {
  const std::string name = fmt::format("messages[{}]", index);
  if (!item.is_object()) {
    return ApiError{.message = fmt::format("{} is {}; it must be an object", name, shown(item)),
                    .param = "messages"};
  }
  FieldReader fields(item, name + ".");
  read_role(fields, name, features, out.role);
  // Clients send a reply's message back as it came, with the fields that it did not use.
  for (const char* unused : {"function_call", "audio", "annotations"}) {
    fields.refuse(unused, "send the text in content");
  }
  fields.refuse("refusal", "send the text in content");
  out.name = fields.text("name").value_or("");
  if (out.role == "assistant") {
    out.reasoning_content = fields.text("reasoning_content").value_or("");
    read_tool_calls(fields, name, features, out.tool_calls);
  } else {
    fields.refuse("reasoning_content", "only an assistant reasons");
    fields.refuse("tool_calls", "only an assistant calls tools");
  }
  if (out.role == "tool") {
    read_tool_call_id(fields, name, features, out.tool_call_id);
  } else {
    fields.refuse("tool_call_id", "only a tool answers calls");
  }
  const json* content = fields.take("content");
  const bool may_lack = !out.tool_calls.empty() || !out.reasoning_content.empty();
  out.has_content = content != nullptr || !may_lack;
  if (fields.ok() && out.has_content) read_content(fields, name + ".content", content, out.content);
  if (fields.finish()) return std::nullopt;
  return fields.take_error();
}

void read_messages(FieldReader& fields, const ChatFeatures& features, ChatRequest& out) {
  const json* value = fields.take("messages");
  if (value == nullptr || !value->is_array() || value->empty()) {
    return fields.fail("messages", fmt::format("messages is {}; it must be a list of at least one message",
                                               value == nullptr ? "missing" : shown(*value)));
  }
  for (size_t i = 0; i < value->size(); ++i) {
    if (auto error = read_message((*value)[i], i, features, out.input.messages.emplace_back())) {
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

// OpenAI's switch is a variable of the template under the same name.
void read_template_variables(FieldReader& fields, const ChatFeatures& features, std::string& out) {
  json variables = json::object();
  if (const json* kwargs = fields.take("chat_template_kwargs")) {
    if (!kwargs->is_object()) {
      return fields.fail("chat_template_kwargs",
                         fmt::format("chat_template_kwargs is {}; it must be an object", shown(*kwargs)));
    }
    variables = *kwargs;
  }
  if (const auto effort = fields.text("reasoning_effort")) {
    if (!features.reasoning_effort) {
      fields.fail("reasoning_effort",
                  "reasoning_effort is not supported: this model's chat template has no such switch; use "
                  "chat_template_kwargs if it has another");
    }
    const json given = variables.value("reasoning_effort", json(*effort));
    if (given != json(*effort)) {
      fields.fail(
          "reasoning_effort",
          fmt::format("reasoning_effort is {} and chat_template_kwargs.reasoning_effort is {}: give one "
                      "of them",
                      shown(json(*effort)), shown(given)));
    }
    variables["reasoning_effort"] = *effort;
  }
  out = variables.dump();
}

void refuse_what_chat_lacks(FieldReader& fields) {
  fields.refuse("functions", "give them as tools");
  fields.only("function_call", {"\"none\"", "\"auto\""}, "use tools and tool_choice");
  fields.only("modalities", {R"(["text"])"}, "only text is available: leave it out");
  fields.refuse("audio", "only text is available");
  fields.refuse("prediction", "leave it out: answers are generated from the messages alone");
  fields.refuse("web_search_options", "there is no search here");
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
  read_common(fields, body, context, /*least_max_tokens=*/1, out.common);
  read_max_tokens(fields, out.common);
  read_messages(fields, context.chat, out);
  read_tools(fields, body, context.chat, out);
  const bool logprobs = fields.boolean("logprobs").value_or(false);
  const auto top = fields.integer("top_logprobs", 0, kMaxTopLogprobs);
  if (top && !logprobs) fields.fail("top_logprobs", "top_logprobs needs logprobs to be true");
  if (logprobs) out.common.sampling.top_logprobs = static_cast<int32_t>(top.value_or(0));
  out.input.add_generation_prompt = fields.boolean("add_generation_prompt").value_or(true);
  read_template_variables(fields, context.chat, out.input.kwargs_json);
  if (const auto budget = fields.integer("thinking_token_budget", 0, std::numeric_limits<int32_t>::max()))
    out.common.sampling.grammar.reasoning_budget = static_cast<uint32_t>(*budget);
  refuse_what_chat_lacks(fields);
  if (!fields.finish()) return std::unexpected(fields.take_error());
  return out;
}

}  // namespace tandem
