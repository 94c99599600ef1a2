// ServedModel: what the API needs of a model: its engine, its tokenizer, its chat template and the defaults
// of sampling. Immutable once it serves; any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "attention/engine.h"
#include "serving/chat/chat_message.h"
#include "serving/chat/output_parser.h"
#include "serving/model_files.h"
#include "serving/openai_request.h"
#include "serving/trace_endpoint.h"
#include "tokenizer/tokenizer.h"

namespace tandem {

// How answers are taken apart: names of find_reasoning_format and find_tool_call_format, or auto.
struct OutputChoice {
  std::string reasoning_parser = "auto";
  std::string tool_call_parser = "auto";
};

struct ServedModel {
  std::string id;            // the name that requests use
  int64_t created = 0;       // seconds since 1970
  Engine* engine = nullptr;  // outlives the server
  std::shared_ptr<const Tokenizer> tokenizer;
  GenerationDefaults defaults;
  double request_timeout_s = 0;        // most that a request may ask for, and what it has without; 0: none
  double queue_timeout_s = 0;          // how long it may wait for its first step; 0: any time
  ChatRenderer render_chat;            // empty: the checkpoint has no template, and chat is refused by name
  ChatFeatures chat_features;          // of its prompt format
  OutputFormat output_format;          // of its answers
  std::vector<int32_t> marker_tokens;  // that output_format reads, as far as they are tokens
  std::vector<bool> known_tokens;      // [vocabulary]: ids that both the tokenizer and the engine have
  TraceSource trace;                   // of the engine's lanes; without a ring: none are in this process
};

// The tokens that end an answer: those of generation_config.json, else of config.json, else the tokenizer's.
// Empty: none is known, and answers end by their length alone. What serves a model and what generates with it
// both ask here.
Result<std::vector<int32_t>> read_eos_token_ids(const std::string& folder);

// Reads tokenizer, template and defaults of a model folder. A template with a construct that cannot be
// rendered is an error that names it. `engine` is set later, with attach_engine.
Result<ServedModel> read_served_model(const std::string& folder, std::string id,
                                      const OutputChoice& choice = {});

struct EncodedChat {
  std::vector<int32_t> tokens;
  bool reasoning_open = false;  // the prompt ends inside <think>: the answer begins with reasoning
};

// A chat as the token ids of its prompt: the template writes the control tokens, BOS among them. Errors:
// out_of_range above `max_tokens`, unsupported without a template, and the template's own. `engine` is not
// needed.
Result<EncodedChat> encode_chat(const ServedModel& model, const ChatInput& input,
                                size_t max_tokens = SIZE_MAX);

// Sets `engine` and what depends on its limits.
void attach_engine(ServedModel& model, Engine& engine);

}  // namespace tandem
