#include "serving/completion_service.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <ctime>
#include <utility>

#include "serving/answer_reply.h"
#include "serving/api_error.h"
#include "serving/form_place.h"
#include "serving/messages_reply.h"
#include "serving/messages_request.h"
#include "serving/openai_request.h"
#include "serving/responses_reply.h"
#include "serving/responses_request.h"
#include "serving/tokenize_format.h"
#include "serving/tokenize_request.h"

namespace tandem {

namespace {

// Prompts up to this length are counted to the end, so that the refusal can say how long they are; what is
// certainly longer is not looked at.
constexpr size_t kMaxCountedTokens = 1 << 20;

RequestContext context_of(const ServedModel& model) {
  RequestContext context;
  context.model = model.id;
  context.defaults = model.defaults.sampling;
  context.known_tokens = &model.known_tokens;
  context.chat = model.chat_features;
  // More at once could never be admitted together.
  const EngineLimits& limits = model.engine->limits();
  context.max_answers =
      std::min<uint32_t>(128, std::max<uint32_t>(1, limits.max_num_seqs + limits.max_queue));
  return context;
}

size_t max_prompt_tokens(const EngineLimits& limits) {
  const size_t by_context = limits.max_context_tokens == 0 ? 0 : limits.max_context_tokens - 1;
  return std::min<size_t>(by_context, limits.kv_pool_tokens);
}

ApiError too_long(const EngineLimits& limits, const std::string& tokens, const char* field) {
  const bool by_context = limits.max_context_tokens <= limits.kv_pool_tokens;
  return {.status = 400,
          .message =
              by_context
                  ? fmt::format("{} has {} tokens and the context of {} tokens must also hold an answer: "
                                "shorten it",
                                field, tokens, limits.max_context_tokens)
                  : fmt::format("{} has {} tokens and the KV pool holds {}: shorten it, or start the server "
                                "with a larger pool",
                                field, tokens, limits.kv_pool_tokens),
          .param = field,
          .code = "context_length_exceeded"};
}

size_t max_counted_tokens(const EngineLimits& limits) {
  return std::max(kMaxCountedTokens, max_prompt_tokens(limits));
}

// What the tokenizer or the template refused.
ApiError unencodable(const Error& error, const EngineLimits& limits, const char* field) {
  if (error.code == ErrorCode::out_of_range) {
    return too_long(limits, fmt::format("more than {}", max_counted_tokens(limits)), field);
  }
  return {.status = 400, .message = error.message, .param = field};
}

std::optional<ApiError> check_length(const ServedModel& model, size_t tokens, const char* field) {
  const EngineLimits& limits = model.engine->limits();
  if (tokens == 0)
    return ApiError{.message = std::string(field) + " has no tokens; at least one is needed", .param = field};
  if (tokens <= max_prompt_tokens(limits)) return std::nullopt;
  return too_long(limits, std::to_string(tokens), field);
}

// 0 seconds: never.
Instant after(Instant received, double seconds) {
  if (seconds == 0) return Instant::max();
  return received + std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
}

// "x-request-timeout: 2.5", for clients and proxies that do not write the body; 0 when it is absent.
ApiResult<double> header_timeout(const HttpRequest& request) {
  const std::string_view text = request.header("x-request-timeout");
  double seconds = 0;
  if (text.empty()) return seconds;
  const auto [end, problem] = std::from_chars(text.begin(), text.end(), seconds);
  if (problem == std::errc() && end == text.end() && seconds > 0 && seconds <= kMaxTimeoutSeconds)
    return seconds;
  return std::unexpected(ApiError{
      .message = fmt::format("the header x-request-timeout is \"{}\"; it must be a number of seconds "
                             "above 0 and at most {:g}",
                             text, kMaxTimeoutSeconds)});
}

auto openai_listener(bool stream, std::shared_ptr<ResponseWriter> writer) {
  return [stream, writer = std::move(writer)](ReplyPlan plan) {
    return stream ? make_stream_reply(std::move(plan), writer) : make_whole_reply(std::move(plan), writer);
  };
}

}  // namespace

struct CompletionService::Job {
  bool chat = false;
  std::string id_prefix;
  OutputOptions output = {};  // of a chat
  CommonRequest common;
  std::vector<std::vector<int32_t>> prompts;
  std::vector<std::string> echo;
  MakeListener make_listener;
};

void CompletionService::handle_completion(const ServedModel& model, const HttpRequest& request,
                                          const std::shared_ptr<ResponseWriter>& writer) const {
  auto parsed = parse_completion_request(request.body, context_of(model));
  if (!parsed) return writer->respond(error_response(parsed.error()));
  const EngineLimits& limits = model.engine->limits();
  const bool stream = parsed->common.stream;
  Job job;
  job.id_prefix = "cmpl-";
  job.common = std::move(parsed->common);
  job.make_listener = openai_listener(stream, writer);
  for (PromptInput& prompt : parsed->prompts) {
    if (parsed->echo && prompt.is_tokens) {
      auto text = model.tokenizer->decode(prompt.tokens);
      if (!text) return writer->respond(error_response(api_error(text.error())));
      prompt.text = std::move(*text);
    }
    if (!prompt.is_tokens) {
      auto ids = model.tokenizer->encode(prompt.text, {.add_special_tokens = parsed->add_special_tokens,
                                                       .parse_special = parsed->parse_special_tokens,
                                                       .max_tokens = max_counted_tokens(limits)});
      if (!ids) return writer->respond(error_response(unencodable(ids.error(), limits, "prompt")));
      prompt.tokens = std::move(*ids);
    }
    if (auto error = check_length(model, prompt.tokens.size(), "prompt"))
      return writer->respond(error_response(*error));
    job.prompts.push_back(std::move(prompt.tokens));
    if (parsed->echo) job.echo.push_back(std::move(prompt.text));
  }
  start(model, request, std::move(job), writer);
}

void CompletionService::handle_chat(const ServedModel& model, const HttpRequest& request,
                                    const std::shared_ptr<ResponseWriter>& writer) const {
  auto parsed = parse_chat_request(request.body, context_of(model));
  if (!parsed) return writer->respond(error_response(parsed.error()));
  auto listener = openai_listener(parsed->common.stream, writer);
  run_chat(model, request, std::move(*parsed), "messages", "chatcmpl-", std::move(listener), writer);
}

void CompletionService::handle_responses(const ServedModel& model, const HttpRequest& request,
                                         const std::shared_ptr<ResponseWriter>& writer) const {
  auto parsed = parse_responses_request(request.body, context_of(model));
  if (!parsed) return writer->respond(error_response(parsed.error()));
  auto listener = [writer, stream = parsed->chat.common.stream, echo = parsed->echo_json](ReplyPlan plan) {
    return make_response_reply(std::move(plan), writer, echo, stream);
  };
  run_chat(model, request, std::move(parsed->chat), "input", "resp_", std::move(listener), writer);
}

void CompletionService::handle_messages(const ServedModel& model, const HttpRequest& request,
                                        const std::shared_ptr<ResponseWriter>& writer) const {
  auto parsed = parse_messages_request(request.body, context_of(model));
  if (!parsed) return writer->respond(refusal(parsed.error(), request.path, request.id));
  auto listener = [writer, stream = parsed->common.stream, id = request.id](ReplyPlan plan) {
    return stream ? make_message_stream(std::move(plan), writer, id)
                  : make_message_reply(std::move(plan), writer, id);
  };
  run_chat(model, request, std::move(*parsed), "messages", "msg_", std::move(listener), writer);
}

void CompletionService::count_message_tokens(const ServedModel& model, const HttpRequest& request,
                                             const std::shared_ptr<ResponseWriter>& writer) const {
  const auto parsed = parse_count_tokens_request(request.body, context_of(model));
  if (!parsed) return writer->respond(refusal(parsed.error(), request.path, request.id));
  const auto chat = encode(model, request, parsed->input, "messages", writer);
  if (!chat) return;
  writer->respond({.status = 200,
                   .headers = {{"request-id", request.id}},
                   .body = fmt::format("{{\"input_tokens\":{}}}\n", chat->tokens.size())});
}

void CompletionService::handle_tokenize(const ServedModel& model, const HttpRequest& request,
                                        const std::shared_ptr<ResponseWriter>& writer) const {
  auto parsed = parse_tokenize_request(request.body, context_of(model));
  if (!parsed) return writer->respond(error_response(parsed.error()));
  std::vector<int32_t> tokens;
  if (parsed->is_chat) {
    auto chat = encode(model, request, parsed->chat, "messages", writer);
    if (!chat) return;
    tokens = std::move(chat->tokens);
  } else {
    const EngineLimits& limits = model.engine->limits();
    auto ids = model.tokenizer->encode(parsed->prompt, {.add_special_tokens = parsed->add_special_tokens,
                                                        .parse_special = parsed->parse_special_tokens,
                                                        .max_tokens = max_counted_tokens(limits)});
    if (!ids) return writer->respond(error_response(unencodable(ids.error(), limits, "prompt")));
    tokens = std::move(*ids);
  }
  writer->respond({.status = 200, .body = tokenize_json(model, tokens, parsed->return_token_strs) + "\n"});
}

void CompletionService::handle_detokenize(const ServedModel& model, const HttpRequest& request,
                                          const std::shared_ptr<ResponseWriter>& writer) const {
  const auto tokens = parse_detokenize_request(request.body, context_of(model));
  if (!tokens) return writer->respond(error_response(tokens.error()));
  const auto text = model.tokenizer->decode(*tokens);
  if (!text) return writer->respond(error_response(api_error(text.error())));
  writer->respond({.status = 200, .body = detokenize_json(*text) + "\n"});
}

std::optional<EncodedChat> CompletionService::encode(const ServedModel& model, const HttpRequest& request,
                                                     const ChatInput& input, const char* field,
                                                     const std::shared_ptr<ResponseWriter>& writer) {
  const EngineLimits& limits = model.engine->limits();
  auto chat = encode_chat(model, input, max_counted_tokens(limits));
  if (chat) return std::move(*chat);
  // Whatever the template says, what it was given is wrong, since it was checked when the server started:
  // the messages, unless the format names its own variables.
  constexpr const char* kVariables = "chat_template_kwargs";
  const bool variables = chat.error().message.starts_with(kVariables);
  writer->respond(
      refusal(unencodable(chat.error(), limits, variables ? kVariables : field), request.path, request.id));
  return std::nullopt;
}

void CompletionService::run_chat(const ServedModel& model, const HttpRequest& request, ChatRequest chat,
                                 const char* field, const char* id_prefix, MakeListener make_listener,
                                 const std::shared_ptr<ResponseWriter>& writer) const {
  const auto refuse = [&](const ApiError& error) {
    writer->respond(refusal(error, request.path, request.id));
  };
  auto prompt = encode(model, request, chat.input, field, writer);
  if (!prompt) return;
  if (auto error = check_length(model, prompt->tokens.size(), field)) return refuse(*error);
  Job job{.chat = true,
          .id_prefix = id_prefix,
          .output = {.reasoning_open = prompt->reasoning_open,
                     .tool_calls = chat.may_call_tools,
                     .parallel_tool_calls = chat.parallel_tool_calls,
                     .tools_json = std::move(chat.input.tools_json)},
          .common = std::move(chat.common),
          .prompts = {},
          .echo = {},
          .make_listener = std::move(make_listener)};
  if (auto error = place_form(model, prompt->reasoning_open, job.common.sampling.grammar))
    return refuse(*error);
  job.prompts.push_back(std::move(prompt->tokens));
  start(model, request, std::move(job), writer);
}

void CompletionService::start(const ServedModel& model, const HttpRequest& request, Job job,
                              const std::shared_ptr<ResponseWriter>& writer) const {
  const auto timeout = header_timeout(request);
  if (!timeout) return writer->respond(refusal(timeout.error(), request.path, request.id));
  ReplyPlan plan;
  plan.head.chat = job.chat;
  plan.head.id = job.id_prefix + request.id;
  plan.head.model = model.id;
  plan.head.created = std::time(nullptr);
  SamplingParams& sampling = job.common.sampling;
  plan.head.logprobs = sampling.top_logprobs >= 0;
  plan.head.top_logprobs = sampling.top_logprobs;
  plan.head.prompt_logprobs = sampling.prompt_logprobs;
  plan.echo_logprobs = !job.echo.empty() && plan.head.logprobs;
  if (plan.echo_logprobs)
    sampling.prompt_logprobs = std::max(sampling.prompt_logprobs, sampling.top_logprobs);
  plan.head.include_usage = job.common.include_usage;
  for (const auto& prompt : job.prompts) {
    if (job.common.continuous_usage) plan.prompt_sizes.push_back(static_cast<uint32_t>(prompt.size()));
  }
  plan.answers_per_prompt = job.common.n;
  plan.answers = static_cast<uint32_t>(job.prompts.size()) * job.common.n;
  plan.prompt_tokens = static_cast<uint32_t>(job.prompts.front().size());
  plan.max_tokens = sampling.max_tokens;
  plan.echo = job.echo;
  plan.output_format = model.output_format;
  plan.output_options = job.output;
  auto listener = job.make_listener(std::move(plan));

  TextRequest text;
  text.id = request.id;
  text.prompts = std::move(job.prompts);
  text.echo = std::move(job.echo);
  text.n = job.common.n;
  text.sampling = std::move(sampling);
  text.priority = job.common.priority;
  text.cache_salt = std::move(job.common.cache_salt);
  text.deadline = after(request.received, job.common.timeout_s.value_or(0));
  text.deadline = std::min(text.deadline, after(request.received, model.request_timeout_s));
  text.deadline = std::min(text.deadline, after(request.received, *timeout));
  text.queue_deadline = after(request.received, model.queue_timeout_s);
  text.stops = std::move(job.common.stops);
  text.eos_token_ids = model.defaults.eos_token_ids;
  text.skip_special_tokens = job.common.skip_special_tokens;
  if (job.chat) text.kept_tokens = model.marker_tokens;
  text.received = request.received;
  const auto generation = TextGeneration::create({model.engine, model.tokenizer, delivery_, metrics_},
                                                 std::move(text), std::move(listener));
  // Weak: the generation holds the writer.
  writer->on_disconnect([weak = std::weak_ptr(generation)] {
    if (const auto alive = weak.lock()) alive->cancel();
  });
  generation->submit();
}

}  // namespace tandem
