// The requests of /v1/completions and /v1/chat/completions, parsed and checked: every field is used, accepted
// because it has no effect on the answer, or refused by name. Pure functions of the body and the context; any
// thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "attention/engine.h"
#include "serving/api_error.h"
#include "serving/chat/chat_message.h"

namespace tandem {

constexpr double kMaxTimeoutSeconds = 86400;  // a day: longer than any answer, and far from a clock's end

// What a request is checked against.
struct RequestContext {
  std::string model;        // the id that is served
  SamplingParams defaults;  // from generation_config.json
  const std::vector<bool>* known_tokens =
      nullptr;                 // [vocabulary]: ids that the tokenizer and the engine have
  uint32_t max_answers = 128;  // n × prompts of one request
  ChatFeatures chat = {};      // what the prompt format has a place for
};

// What both APIs share.
struct CommonRequest {
  SamplingParams sampling;
  bool max_tokens_given = false;
  uint32_t n = 1;
  std::vector<std::string> stops;
  bool stream = false;
  bool include_usage = false, continuous_usage = false;
  bool skip_special_tokens = true;
  int32_t priority = 0;    // lower ones are served first
  std::string cache_salt;  // beginnings of prompts are shared with requests of the same salt; may be empty
  std::optional<double> timeout_s;  // from the request's arrival to the end of its last answer
};

struct PromptInput {
  bool is_tokens = false;
  std::string text;
  std::vector<int32_t> tokens;
};

struct CompletionRequest {
  CommonRequest common;
  std::vector<PromptInput> prompts;
  bool echo = false;
  bool add_special_tokens = true;     // BOS where the tokenizer adds one
  bool parse_special_tokens = false;  // control tokens written in the prompt become control tokens
};

struct ChatRequest {
  CommonRequest common;
  ChatInput input;
  bool may_call_tools = false;  // there are tools, and tool_choice is not none
  bool parallel_tool_calls = true;
};

ApiResult<CompletionRequest> parse_completion_request(std::string_view body, const RequestContext& context);
ApiResult<ChatRequest> parse_chat_request(std::string_view body, const RequestContext& context);

}  // namespace tandem
