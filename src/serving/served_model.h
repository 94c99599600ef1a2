// ServedModel: what the API needs of a model: its engine, its tokenizer, its chat template and the defaults
// of sampling. Immutable once it serves; any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "attention/engine.h"
#include "serving/chat_prompt.h"
#include "serving/model_files.h"
#include "tokenizer/tokenizer.h"

namespace tandem {

// Renders a chat template; `kwargs_json`: an object of more variables.
using ChatRenderer = std::function<Result<std::string>(
    const std::vector<ChatMessage>& messages, bool add_generation_prompt, const std::string& kwargs_json)>;

struct ServedModel {
  std::string id;            // the name that requests use
  int64_t created = 0;       // seconds since 1970
  Engine* engine = nullptr;  // outlives the server
  std::shared_ptr<const Tokenizer> tokenizer;
  GenerationDefaults defaults;
  ChatRenderer render_chat;  // empty: the checkpoint has no template, and chat is refused by name
  std::string template_source;
  ControlTokens control;
  std::vector<bool> known_tokens;  // [vocabulary]: ids that both the tokenizer and the engine have
};

// Reads tokenizer, template and defaults of a model folder. A template with a construct that cannot be
// rendered is an error that names it. `engine` is set later, with attach_engine.
Result<ServedModel> read_served_model(const std::string& folder, std::string id);

// Sets `engine` and what depends on its limits.
void attach_engine(ServedModel& model, Engine& engine);

}  // namespace tandem
