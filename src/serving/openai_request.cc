#include "serving/openai_request.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "serving/request_fields.h"

namespace tandem {

using nlohmann::json;

namespace {

constexpr int64_t kMaxCompletionLogprobs = 20;  // OpenAI has 5; the sampler gives up to 20

bool is_list_of(const json& value, bool (*is)(const json&)) {
  if (!value.is_array() || value.empty()) return false;
  return is(value.front());
}

void read_tokens(FieldReader& fields, const std::string& name, const json& list,
                 const RequestContext& context, PromptInput& out) {
  out.is_tokens = true;
  out.tokens.reserve(list.size());
  for (const json& item : list) {
    const auto id = read_token_id(fields, name, item, context);
    if (!id) return;
    out.tokens.push_back(*id);
  }
}

// A string, a list of strings, a list of ids, or a list of lists of ids.
void read_prompts(FieldReader& fields, const RequestContext& context, CompletionRequest& out) {
  const json* value = fields.take("prompt");
  if (value == nullptr)
    return fields.fail("prompt", "prompt is missing: give a string, or a list of token ids");
  if (value->is_string()) {
    out.prompts.push_back({.is_tokens = false, .text = value->get<std::string>(), .tokens = {}});
    return;
  }
  if (is_list_of(*value, [](const json& item) { return item.is_number(); })) {
    return read_tokens(fields, "prompt", *value, context, out.prompts.emplace_back());
  }
  const bool strings = is_list_of(*value, [](const json& item) { return item.is_string(); });
  const bool lists = is_list_of(*value, [](const json& item) { return item.is_array(); });
  if (!strings && !lists) {
    return fields.fail(
        "prompt", fmt::format("prompt is {}; it must be a string, a list of strings, a list of token ids, "
                              "or a list of lists of token ids, and not empty",
                              shown(*value)));
  }
  for (size_t i = 0; i < value->size() && fields.ok(); ++i) {
    const json& item = (*value)[i];
    const std::string name = fmt::format("prompt[{}]", i);
    if (strings ? !item.is_string() : !item.is_array() || item.empty()) {
      return fields.fail(
          "prompt", fmt::format("{} is {}; the items before are {}: do not mix, and leave none empty", name,
                                shown(item), strings ? "strings" : "lists of token ids"));
    }
    PromptInput& prompt = out.prompts.emplace_back();
    if (strings) {
      prompt.text = item.get<std::string>();
    } else {
      read_tokens(fields, name, item, context, prompt);
    }
  }
}

}  // namespace

ApiResult<CompletionRequest> parse_completion_request(std::string_view body, const RequestContext& context) {
  auto parsed = parse_body(body);
  if (!parsed) return std::unexpected(std::move(parsed.error()));
  FieldReader fields(*parsed);
  if (auto error = check_model(fields, context)) return std::unexpected(std::move(*error));

  CompletionRequest out;
  out.common.sampling.max_tokens = context.defaults.max_tokens;
  out.echo = fields.boolean("echo").value_or(false);
  // OpenAI's way to ask for nothing but the prompt's own log probabilities.
  read_common(fields, body, context, /*least_max_tokens=*/out.echo ? 0 : 1, out.common);
  if (!out.common.max_tokens_given) out.common.sampling.max_tokens = 16;  // OpenAI's default of this API
  read_prompts(fields, context, out);
  out.add_special_tokens = fields.boolean("add_special_tokens").value_or(true);
  out.parse_special_tokens = fields.boolean("parse_special_tokens").value_or(false);
  if (const auto value = fields.integer("logprobs", 0, kMaxCompletionLogprobs)) {
    out.common.sampling.top_logprobs = static_cast<int32_t>(*value);
  }
  if (const auto value = fields.integer("best_of", 1, context.max_answers); value && *value != out.common.n) {
    fields.fail("best_of", fmt::format("best_of is {} and n is {}: only equal values are supported", *value,
                                       out.common.n));
  }
  if (const json* suffix = fields.take("suffix"); suffix != nullptr && *suffix != json("")) {
    fields.fail("suffix", "suffix is not supported: there is no infilling here; write it into the prompt");
  }
  if (out.prompts.size() * out.common.n > context.max_answers) {
    fields.fail("n", fmt::format("n × prompts is {}; at most {} answers in one request: split it",
                                 out.prompts.size() * out.common.n, context.max_answers));
  }
  const SamplingParams& sampling = out.common.sampling;
  if (sampling.min_tokens > sampling.max_tokens) {
    fields.fail("min_tokens", fmt::format("min_tokens is {}; it must be at most max_tokens, which is {}",
                                          sampling.min_tokens, sampling.max_tokens));
  }
  if (!fields.finish()) return std::unexpected(fields.take_error());
  return out;
}

}  // namespace tandem
