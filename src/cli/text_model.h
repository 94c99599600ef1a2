// TextModel: the text side of a model folder for commands that talk to an engine without HTTP: prompts in,
// text out.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "attention/engine.h"
#include "serving/served_model.h"

namespace tandem {

class TextModel {
 public:
  static Result<TextModel> load(const std::string& folder);

  const Tokenizer& tokenizer() const { return *model_.tokenizer; }
  const GenerationDefaults& defaults() const { return model_.defaults; }

  // Plain text to continue, BOS where the tokenizer adds one.
  Result<std::vector<int32_t>> encode_text(const std::string& text) const;
  // One user message in the chat template, up to where the assistant begins.
  Result<std::vector<int32_t>> encode_question(const std::string& question) const;
  // The same behind earlier turns, each a question and its answer.
  Result<std::vector<int32_t>> encode_question(std::span<const std::pair<std::string, std::string>> turns,
                                               const std::string& question) const;
  // Without control tokens.
  Result<std::string> decode(const std::vector<int32_t>& tokens) const;

 private:
  explicit TextModel(ServedModel model) : model_(std::move(model)) {}
  ServedModel model_;
};

}  // namespace tandem
