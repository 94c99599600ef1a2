#include "serving/chat_renderer.h"

#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "serving/chat_template.h"

namespace tandem {

Result<ChatRenderer> make_chat_renderer(const ChatTemplateSource& source) {
  auto parsed = ChatTemplate::parse(source.text);
  if (!parsed)
    return make_error(parsed.error().code, source.file + ": chat template: " + parsed.error().message);
  const auto chat = std::make_shared<const ChatTemplate>(std::move(*parsed));
  return ChatRenderer([chat, bos = source.bos_token, eos = source.eos_token](
                          const std::vector<ChatMessage>& messages, bool add_generation_prompt,
                          const std::string& kwargs_json) -> Result<ChatPrompt> {
    nlohmann::ordered_json list = nlohmann::ordered_json::array();
    for (const ChatMessage& message : messages) {
      auto& item =
          list.emplace_back(nlohmann::ordered_json{{"role", message.role}, {"content", message.content}});
      if (!message.name.empty()) item["name"] = message.name;
    }
    const std::string messages_json = list.dump();
    TANDEM_ASSIGN(RenderedChat rendered, chat->render({.messages_json = messages_json,
                                                       .add_generation_prompt = add_generation_prompt,
                                                       .bos_token = bos,
                                                       .eos_token = eos,
                                                       .extra_json = kwargs_json}));
    return ChatPrompt{std::move(rendered.text), std::move(rendered.from_request)};
  });
}

}  // namespace tandem
