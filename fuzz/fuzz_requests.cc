// Bodies of requests: the first byte says of which endpoint. What is taken is within the limits that the
// engine relies on, a refusal is a well-formed error of the client, and a chat that is taken can be rendered
// or is refused.
#include <nlohmann/json.hpp>

#include "fuzzing.h"
#include "serving/chat_template.h"
#include "serving/messages_request.h"
#include "serving/openai_request.h"
#include "serving/responses_request.h"
#include "serving/tokenize_request.h"

namespace {

using namespace tandem;
using fuzz::require;

constexpr size_t kVocabulary = 300;

struct Surroundings {
  Surroundings() : known(kVocabulary, true) {
    known[298] = false;
    context.model = "m";
    context.known_tokens = &known;
    context.max_answers = 16;
    context.chat = {.tools = true,
                    .tool_messages = true,
                    .reasoning_effort = true,
                    .reasons = true,
                    .thinking_switch = "enable_thinking",
                    .latest_reminder = true,
                    .reads_tool_calls = true,
                    .call_format = "hermes"};
    auto parsed = ChatTemplate::parse(fuzz::file_text("tests/fixtures/chat_templates/qwen3.jinja"));
    require(parsed.has_value(), "the template is one");
    chat_template.emplace(std::move(*parsed));
  }
  std::vector<bool> known;
  RequestContext context;
  std::optional<ChatTemplate> chat_template;
};

const Surroundings& surroundings() {
  static const Surroundings made;
  return made;
}

void check_token(int32_t token) {
  require(token >= 0 && static_cast<size_t>(token) < kVocabulary && token != 298, "token ids are known");
}

void check(const CommonRequest& request) {
  const SamplingParams& p = request.sampling;
  require(p.temperature >= 0 && p.temperature <= 2 && p.top_p >= 0 && p.top_p <= 1 && p.min_p >= 0 &&
              p.min_p <= 1,
          "sampling is in range");
  require(p.top_k >= -1 && p.top_logprobs >= -1 && p.top_logprobs <= 20 && p.prompt_logprobs >= -1 &&
              p.prompt_logprobs <= 20,
          "counts are in range");
  require(p.repetition_penalty > 0 && p.repetition_penalty <= 100, "the repetition penalty is in range");
  require(request.n >= 1 && request.n <= 16, "n is in range");
  require(!request.timeout_s || (*request.timeout_s > 0 && *request.timeout_s <= kMaxTimeoutSeconds),
          "the timeout is in range");
  for (const int32_t token : p.stop_token_ids) check_token(token);
  for (const auto& [token, bias] : p.logit_bias) {
    check_token(token);
    require(bias >= -100 && bias <= 100, "biases are in range");
  }
  for (const std::string& stop : request.stops) require(!stop.empty(), "no stop string is empty");
}

void check(const ChatInput& input) {
  require(!input.messages.empty(), "a chat has a message");
  nlohmann::ordered_json messages = nlohmann::ordered_json::array();
  for (const ChatMessage& message : input.messages) {
    nlohmann::ordered_json one = {{"role", message.role}, {"content", message.content}};
    for (const ToolCall& call : message.tool_calls) {
      one["tool_calls"].push_back(
          {{"type", "function"},
           {"function",
            {{"name", call.name}, {"arguments", nlohmann::ordered_json::parse(call.arguments)}}}});
    }
    messages.push_back(std::move(one));
  }
  const std::string text = messages.dump();
  const auto rendered =
      surroundings().chat_template->render({.messages_json = text,
                                            .tools_json = input.tools_json,
                                            .add_generation_prompt = input.add_generation_prompt,
                                            .extra_json = input.kwargs_json});
  require(rendered || !rendered.error().message.empty(), "a refusal says why");
}

void check(const CompletionRequest& request) {
  check(request.common);
  require(!request.prompts.empty() && request.prompts.size() * request.common.n <= 16, "prompts are counted");
  for (const PromptInput& prompt : request.prompts) {
    for (const int32_t token : prompt.tokens) check_token(token);
  }
  require(request.echo || request.common.sampling.max_tokens > 0,
          "an answer has room, unless the prompt is wanted");
}

void check(const ChatRequest& request) {
  check(request.common);
  check(request.input);
}

void check(const ResponsesRequest& request) {
  check(request.chat);
  require(nlohmann::json::parse(request.echo_json).is_object(), "what a response repeats is an object");
}

void check(const TokenizeRequest& request) {
  if (request.is_chat) check(request.chat);
}

void check(const std::vector<int32_t>& tokens) {
  for (const int32_t token : tokens) check_token(token);
}

template <class T>
void check_result(const ApiResult<T>& result) {
  if (result) return check(*result);
  const ApiError& error = result.error();
  require(error.status == 400 || error.status == 404, "the client is at fault");
  require(!error.message.empty(), "a refusal says why");
  require(nlohmann::json::parse(error_json(error))["error"]["message"].is_string(), "an error is JSON");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view body(reinterpret_cast<const char*>(data) + 1, size - 1);
  const RequestContext& context = surroundings().context;
  switch (data[0] % 7) {
    case 0:
      check_result(parse_completion_request(body, context));
      break;
    case 1:
      check_result(parse_chat_request(body, context));
      break;
    case 2:
      check_result(parse_responses_request(body, context));
      break;
    case 3:
      check_result(parse_messages_request(body, context));
      break;
    case 4: {
      // Without an answer there is nothing to sample.
      const auto counted = parse_count_tokens_request(body, context);
      if (counted) check(counted->input);
      break;
    }
    case 5:
      check_result(parse_tokenize_request(body, context));
      break;
    default:
      check_result(parse_detokenize_request(body, context));
  }
  return 0;
}
