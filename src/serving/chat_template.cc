#include "serving/chat_template.h"

#include <fmt/format.h>

#include <algorithm>

#include "serving/jinja/evaluator.h"
#include "serving/jinja/parser.h"

namespace tandem {

struct ChatTemplate::State {
  jinja::Node root;
};

ChatTemplate::ChatTemplate(std::unique_ptr<const State> state) : state_(std::move(state)) {}
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;
ChatTemplate::~ChatTemplate() = default;

Result<ChatTemplate> ChatTemplate::parse(std::string_view source) {
  TANDEM_ASSIGN(jinja::Node root, jinja::parse(source));
  return ChatTemplate(std::make_unique<const State>(State{std::move(root)}));
}

Result<RenderedChat> ChatTemplate::render(const ChatRenderOptions& options) const {
  const auto read = [](std::string_view name, std::string_view json) -> Result<jinja::Value> {
    auto value = jinja::from_json(json);
    if (!value) return make_error(value.error().code, fmt::format("{}: {}", name, value.error().message));
    return value;
  };
  jinja::Variables variables;
  const auto set = [&](std::string_view name, jinja::Value value) {
    std::erase_if(variables, [&](const auto& entry) { return entry.first == name; });
    variables.emplace_back(name, std::move(value));
  };
  TANDEM_ASSIGN(jinja::Value messages, read("messages", options.messages_json));
  if (messages.list() == nullptr)
    return make_error(ErrorCode::invalid_argument, "messages: must be an array");
  set("messages", std::move(messages));
  // transformers passes None, not nothing, when there are no tools or documents.
  set("tools", jinja::None{});
  set("documents", jinja::None{});
  if (!options.tools_json.empty()) {
    TANDEM_ASSIGN(jinja::Value tools, read("tools", options.tools_json));
    set("tools", std::move(tools));
  }
  set("add_generation_prompt", options.add_generation_prompt);
  if (!options.bos_token.empty()) set("bos_token", options.bos_token);
  if (!options.eos_token.empty()) set("eos_token", options.eos_token);
  if (!options.extra_json.empty()) {
    TANDEM_ASSIGN(const jinja::Value extra, read("chat template variables", options.extra_json));
    if (extra.map() == nullptr)
      return make_error(ErrorCode::invalid_argument, "chat template variables: must be an object");
    for (const auto& [name, value] : extra.map()->entries) set(name.text()->bytes, value);
  }
  jinja::Evaluator evaluator(std::move(variables), options.now.value_or(std::chrono::system_clock::now()));
  TANDEM_ASSIGN(jinja::Text text, evaluator.render(state_->root));
  return RenderedChat{std::move(text.bytes), std::move(text.input)};
}

}  // namespace tandem
