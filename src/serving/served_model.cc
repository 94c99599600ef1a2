#include "serving/served_model.h"

#include <algorithm>
#include <ctime>
#include <utility>

#include "serving/chat_renderer.h"

namespace tandem {

Result<ServedModel> read_served_model(const std::string& folder, std::string id) {
  ServedModel model;
  model.id = std::move(id);
  model.created = std::time(nullptr);
  TANDEM_ASSIGN(Tokenizer tokenizer, Tokenizer::load(folder));
  model.tokenizer = std::make_shared<const Tokenizer>(std::move(tokenizer));
  TANDEM_ASSIGN(model.defaults, read_generation_defaults(folder));
  if (model.defaults.eos_token_ids.empty()) {
    if (const auto eos = model.tokenizer->eos_id()) model.defaults.eos_token_ids.push_back(*eos);
  }
  TANDEM_ASSIGN(const ChatTemplateSource source, read_chat_template(folder));
  if (!source.text.empty()) {
    TANDEM_ASSIGN(model.render_chat, make_chat_renderer(source));
  }
  return model;
}

Result<std::vector<int32_t>> encode_chat(const ServedModel& model, const std::vector<ChatMessage>& messages,
                                         bool add_generation_prompt, const std::string& kwargs_json,
                                         size_t max_tokens) {
  if (!model.render_chat) {
    return make_error(ErrorCode::unsupported,
                      "the model " + model.id +
                          " has no chat template: give plain text (/v1/completions), or put a "
                          "chat_template.jinja into its folder");
  }
  auto prompt = model.render_chat(messages, add_generation_prompt, kwargs_json);
  if (!prompt) return make_error(ErrorCode::invalid_argument, std::move(prompt.error().message));
  return model.tokenizer->encode(prompt->text, {.add_special_tokens = false,
                                                .parse_special = true,
                                                .plain_ranges = prompt->plain_ranges,
                                                .max_tokens = max_tokens});
}

void attach_engine(ServedModel& model, Engine& engine) {
  model.engine = &engine;
  const auto size =
      std::min<size_t>(static_cast<size_t>(model.tokenizer->vocab_size()), engine.limits().vocab_size);
  model.known_tokens.assign(size, false);
  for (size_t id = 0; id < size; ++id) {
    model.known_tokens[id] = model.tokenizer->token_text(static_cast<int32_t>(id)).has_value();
  }
}

}  // namespace tandem
