// Prompts of `generate`: one from the command line, a file of JSON lines, or lines that come on standard
// input while the model stays loaded. Text is encoded by the model's tokenizer; a folder without one
// continues token ids.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "attention/engine.h"
#include "cli/settings.h"
#include "cli/text_model.h"

namespace tandem {

class PromptReader {
 public:
  // Loads the tokenizer when the folder has one.
  static Result<PromptReader> open(const Settings& settings);

  // {"prompt": TEXT} or {"prompt_ids": [INT]}, each with an optional "max_tokens"; or a list of such objects,
  // which are one batch. Sampling comes from the settings. `place` begins the message of an error.
  Result<std::vector<GenerationRequest>> line(const std::string& line, const std::string& place) const;

  // Everything that --prompt or the file of --prompts-file asks for; never empty.
  Result<std::vector<GenerationRequest>> all() const;

  // nullptr without a tokenizer.
  const TextModel* text() const { return text_ ? &*text_ : nullptr; }

 private:
  explicit PromptReader(const Settings& settings) : settings_(&settings) {}
  Result<GenerationRequest> text_request(const std::string& text) const;

  const Settings* settings_;
  std::optional<TextModel> text_;
};

}  // namespace tandem
