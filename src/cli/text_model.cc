#include "cli/text_model.h"

namespace tandem {

Result<TextModel> TextModel::load(const std::string& folder) {
  TANDEM_ASSIGN(ServedModel model, read_served_model(folder, folder));
  return TextModel(std::move(model));
}

Result<std::vector<int32_t>> TextModel::encode_text(const std::string& text) const { return tokenizer().encode(text); }

Result<std::vector<int32_t>> TextModel::encode_question(const std::string& question) const {
  if (!model_.render_chat) {
    return make_error(ErrorCode::unsupported, "the model has no chat template; continue plain text without --chat");
  }
  const std::vector<ChatMessage> messages = {{"user", question, ""}};
  const auto render = [&](const std::vector<ChatMessage>& marked) { return model_.render_chat(marked, true, "{}"); };
  TANDEM_ASSIGN(const MarkedPrompt prompt, render_chat_prompt(messages, model_.control, model_.template_source, render));
  EncodeOptions options;
  options.add_special_tokens = false;
  options.plain_ranges = prompt.plain_ranges;
  return tokenizer().encode(prompt.text, options);
}

Result<std::string> TextModel::decode(const std::vector<int32_t>& tokens) const {
  return tokenizer().decode(tokens, /*skip_special=*/true);
}

}  // namespace tandem
