#include "cli/text_model.h"

namespace tandem {

Result<TextModel> TextModel::load(const std::string& folder) {
  TANDEM_ASSIGN(ServedModel model, read_served_model(folder, folder));
  return TextModel(std::move(model));
}

Result<std::vector<int32_t>> TextModel::encode_text(const std::string& text) const {
  return tokenizer().encode(text);
}

Result<std::vector<int32_t>> TextModel::encode_question(const std::string& question) const {
  return encode_question({}, question);
}

Result<std::vector<int32_t>> TextModel::encode_question(
    std::span<const std::pair<std::string, std::string>> turns, const std::string& question) const {
  ChatInput input;
  for (const auto& [asked, answered] : turns) {
    input.messages.push_back({.role = "user", .content = asked});
    input.messages.push_back({.role = "assistant", .content = answered});
  }
  input.messages.push_back({.role = "user", .content = question});
  TANDEM_ASSIGN(EncodedChat chat, encode_chat(model_, input));
  return std::move(chat.tokens);
}

Result<std::string> TextModel::decode(const std::vector<int32_t>& tokens) const {
  return tokenizer().decode(tokens, /*skip_special=*/true);
}

}  // namespace tandem
