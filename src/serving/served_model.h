// ServedModel: what the API needs of a model: its engine, its tokenizer, its chat template and the defaults
// of sampling. Immutable once it serves; any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "attention/engine.h"
#include "serving/model_files.h"
#include "serving/openai_request.h"
#include "tokenizer/tokenizer.h"

namespace tandem {

// A rendered chat. Control tokens come from the template alone: what came from the request is plain text, so
// a message that contains "<|im_end|>" stays a message.
struct ChatPrompt {
  std::string text;
  std::vector<TextRange> plain_ranges;  // ascending, disjoint: bytes that came from the request
};

// Renders a chat template; `kwargs_json`: an object of more variables.
using ChatRenderer = std::function<Result<ChatPrompt>(
    const std::vector<ChatMessage>& messages, bool add_generation_prompt, const std::string& kwargs_json)>;

struct ServedModel {
  std::string id;            // the name that requests use
  int64_t created = 0;       // seconds since 1970
  Engine* engine = nullptr;  // outlives the server
  std::shared_ptr<const Tokenizer> tokenizer;
  GenerationDefaults defaults;
  ChatRenderer render_chat;        // empty: the checkpoint has no template, and chat is refused by name
  std::vector<bool> known_tokens;  // [vocabulary]: ids that both the tokenizer and the engine have
};

// Reads tokenizer, template and defaults of a model folder. A template with a construct that cannot be
// rendered is an error that names it. `engine` is set later, with attach_engine.
Result<ServedModel> read_served_model(const std::string& folder, std::string id);

// A chat as the token ids of its prompt: the template writes the control tokens, BOS among them. Errors:
// out_of_range above `max_tokens`, unsupported without a template, and the template's own. `engine` is not
// needed.
Result<std::vector<int32_t>> encode_chat(const ServedModel& model, const std::vector<ChatMessage>& messages,
                                         bool add_generation_prompt, const std::string& kwargs_json,
                                         size_t max_tokens = SIZE_MAX);

// Sets `engine` and what depends on its limits.
void attach_engine(ServedModel& model, Engine& engine);

}  // namespace tandem
