#include "serving/request_fields.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "serving/form_fields.h"

namespace tandem {

using nlohmann::json;

namespace {

// No request nests deeper than messages, content, part; a million brackets would cost far more than they are
// worth.
constexpr int kMaxDepth = 64;
// OpenAI allows 4; each costs one automaton step a byte.
constexpr size_t kMaxStops = 16;
constexpr int64_t kMaxPromptLogprobs = 20;  // as many as of an answer's tokens
// Longer than any key or hash that stands for a tenant.
constexpr size_t kMaxSaltBytes = 256;
constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();

bool too_deep(std::string_view text) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
      continue;
    }
    if (c == '"') in_string = true;
    if ((c == '[' || c == '{') && ++depth > kMaxDepth) return true;
    if (c == ']' || c == '}') --depth;
  }
  return false;
}

void read_stop_token_ids(FieldReader& fields, const RequestContext& context, CommonRequest& out) {
  const json* value = fields.take("stop_token_ids");
  if (value == nullptr) return;
  if (!value->is_array()) {
    return fields.fail("stop_token_ids",
                       fmt::format("stop_token_ids is {}; it must be a list of token ids", shown(*value)));
  }
  for (const json& item : *value) {
    const auto id = read_token_id(fields, "stop_token_ids", item, context);
    if (!id) return;
    out.sampling.stop_token_ids.push_back(*id);
  }
}

void read_logit_bias(FieldReader& fields, const RequestContext& context, CommonRequest& out) {
  const json* value = fields.take("logit_bias");
  if (value == nullptr) return;
  if (!value->is_object()) {
    return fields.fail("logit_bias", fmt::format("logit_bias is {}; it must be an object of token id to bias",
                                                 shown(*value)));
  }
  for (const auto& [key, bias] : value->items()) {
    int64_t number = 0;
    const auto end = std::from_chars(key.data(), key.data() + key.size(), number);
    const bool is_number = end.ec == std::errc() && end.ptr == key.data() + key.size() && !key.empty();
    const auto id = read_token_id(fields, "logit_bias", is_number ? json(number) : json(key), context);
    if (!id) return;
    if (!bias.is_number() || !(std::abs(bias.get<double>()) <= 100)) {
      return fields.fail(
          "logit_bias",
          fmt::format("logit_bias of token id {} is {}; it must be a number in -100..100", *id, shown(bias)));
    }
    out.sampling.logit_bias.emplace_back(*id, bias.get<float>());
  }
}

void read_sampling(FieldReader& fields, SamplingParams& out) {
  const auto number = [&](std::string_view name, double low, double high, float& field) {
    if (const auto value = fields.number(name, low, high)) field = static_cast<float>(*value);
  };
  number("temperature", 0, 2, out.temperature);
  number("top_p", 0, 1, out.top_p);
  number("min_p", 0, 1, out.min_p);
  number("frequency_penalty", -2, 2, out.frequency_penalty);
  number("presence_penalty", -2, 2, out.presence_penalty);
  if (const auto value = fields.number("repetition_penalty", 0, 100)) {
    out.repetition_penalty = static_cast<float>(*value);
    if (!(out.repetition_penalty > 0)) {
      fields.fail("repetition_penalty",
                  "repetition_penalty is 0; it must be above 0 (1 is off) and at most 100");
    }
  }
  if (const auto value = fields.integer("top_k", -1, kMaxInt32)) out.top_k = static_cast<int32_t>(*value);
  if (const auto value = fields.integer("min_tokens", 0, kMaxInt32))
    out.min_tokens = static_cast<uint32_t>(*value);
  if (const auto value = fields.boolean("ignore_eos")) out.ignore_eos = *value;
  if (const auto value = fields.integer("seed", INT64_MIN, INT64_MAX))
    out.seed = static_cast<uint64_t>(*value);
}

void read_stream(FieldReader& fields, CommonRequest& out) {
  out.stream = fields.boolean("stream").value_or(false);
  const json* value = fields.take("stream_options");
  if (value == nullptr) return;
  if (!out.stream) return fields.fail("stream_options", "stream_options is only allowed when stream is true");
  if (!value->is_object()) {
    return fields.fail("stream_options",
                       fmt::format("stream_options is {}; it must be an object", shown(*value)));
  }
  FieldReader options(*value, "stream_options.");
  out.include_usage = options.boolean("include_usage").value_or(false);
  options.only("include_obfuscation", {"false"}, "streams are not padded here: leave it out");
  out.continuous_usage = options.boolean("continuous_usage_stats").value_or(false);
  if (out.continuous_usage && !out.include_usage) {
    options.fail("continuous_usage_stats",
                 "stream_options.continuous_usage_stats is true without include_usage; set both");
  }
  if (!options.finish()) {
    const ApiError error = options.take_error();
    fields.fail(error.param, error.message);
  }
}

void refuse_what_both_lack(FieldReader& fields) {
  // Without effect on an answer: who asked, and hints for caches and queues.
  fields.accept({"user", "metadata", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"});
  fields.only("service_tier", {"\"auto\"", "\"default\""}, "there is one tier here: leave it out");
  fields.refuse("logits_processors", "use logit_bias");
  fields.refuse("bad_words", "use logit_bias with -100 for single tokens");
  fields.refuse("allowed_token_ids", "use logit_bias");
  fields.refuse("use_beam_search", "use n with temperature");
  fields.refuse("length_penalty", "it belongs to beam search, which is not supported");
  fields.refuse("include_stop_str_in_output", "stop strings are never part of the answer");
  fields.refuse("truncate_prompt_tokens", "shorten the prompt");
  fields.only("spaces_between_special_tokens", {"true"},
              "special tokens are written as they are: leave it out");
}

}  // namespace

ApiResult<json> parse_body(std::string_view body) {
  if (too_deep(body)) {
    return std::unexpected(
        ApiError{.message = fmt::format("the body nests deeper than {} levels", kMaxDepth)});
  }
  try {
    json value = json::parse(body);
    if (value.is_object()) return value;
    return std::unexpected(ApiError{.message = "the body is " + shown(value) + "; it must be a JSON object"});
  } catch (const json::exception& error) {
    return std::unexpected(ApiError{.message = std::string("the body is not valid JSON: ") + error.what()});
  }
}

void read_stops(FieldReader& fields, std::string_view name, CommonRequest& out) {
  const json* value = fields.take(name);
  if (value == nullptr) return;
  const json list = value->is_string() ? json::array({*value}) : *value;
  if (!list.is_array() || list.size() > kMaxStops) {
    return fields.fail(name, fmt::format("{} is {}; it must be a string or a list of at most {} strings",
                                         name, shown(*value), kMaxStops));
  }
  for (const json& stop : list) {
    if (!stop.is_string()) {
      return fields.fail(name, fmt::format("{} holds {}; it must hold strings", name, shown(stop)));
    }
    if (stop.get_ref<const std::string&>().empty()) {
      return fields.fail(
          name,
          fmt::format("{} holds an empty string, which would stop every answer at once: remove it", name));
    }
    out.stops.push_back(stop.get<std::string>());
  }
}

void read_timeout(FieldReader& fields, CommonRequest& out) {
  out.timeout_s = fields.number("timeout", 0, kMaxTimeoutSeconds);
  if (out.timeout_s == 0.0)
    fields.fail("timeout", "timeout is 0; it must be above 0 seconds: leave it out for none");
}

std::optional<ApiError> check_model(FieldReader& fields, const RequestContext& context) {
  const auto model = fields.text("model");
  if (!fields.ok()) return fields.take_error();
  if (!model) {
    return ApiError{.message = "model is missing: this server has \"" + context.model + "\"",
                    .param = "model"};
  }
  if (*model == context.model) return std::nullopt;
  return ApiError{.status = 404,
                  .message = "the model " + shown(json(*model)) + " does not exist: this server has \"" +
                             context.model + "\"",
                  .param = "model",
                  .code = "model_not_found"};
}

std::optional<int32_t> read_token_id(FieldReader& fields, std::string_view name, const json& value,
                                     const RequestContext& context) {
  const auto number = as_integer(value);
  const auto& known = *context.known_tokens;
  if (number && *number >= 0 && static_cast<uint64_t>(*number) < known.size() &&
      known[static_cast<size_t>(*number)]) {
    return static_cast<int32_t>(*number);
  }
  if (!value.is_number_integer()) {
    fields.fail(name, fmt::format("{} holds {}; a token id is an integer", name, shown(value)));
  } else if (number && *number >= 0 && static_cast<uint64_t>(*number) < known.size()) {
    fields.fail(name, fmt::format("{}: token id {} is not in the vocabulary (it is a hole)", name, *number));
  } else {
    fields.fail(name, fmt::format("{}: token id {} is not in the vocabulary: ids are in 0..{}", name,
                                  shown(value), known.empty() ? 0 : known.size() - 1));
  }
  return std::nullopt;
}

void read_common(FieldReader& fields, std::string_view body, const RequestContext& context,
                 int64_t least_max_tokens, CommonRequest& out) {
  out.sampling = context.defaults;
  read_sampling(fields, out.sampling);
  if (const auto value = fields.integer("max_tokens", least_max_tokens, kMaxInt32)) {
    out.sampling.max_tokens = static_cast<uint32_t>(*value);
    out.max_tokens_given = true;
  }
  if (const auto value = fields.integer("n", 1, context.max_answers)) out.n = static_cast<uint32_t>(*value);
  read_stops(fields, "stop", out);
  read_stop_token_ids(fields, context, out);
  read_logit_bias(fields, context, out);
  read_stream(fields, out);
  read_timeout(fields, out);
  if (const auto value = fields.integer("prompt_logprobs", 0, kMaxPromptLogprobs)) {
    out.sampling.prompt_logprobs = static_cast<int32_t>(*value);
    if (out.stream) {
      fields.fail("prompt_logprobs",
                  "prompt_logprobs has no place in a stream, as in vLLM: leave stream out, or use echo with "
                  "logprobs on /v1/completions");
    }
  }
  if (const auto value = fields.boolean("skip_special_tokens")) out.skip_special_tokens = *value;
  if (const auto value = fields.integer("priority", -kMaxInt32, kMaxInt32))
    out.priority = static_cast<int32_t>(*value);
  if (auto value = fields.text("cache_salt")) {
    out.cache_salt = std::move(*value);
    if (out.cache_salt.empty() || out.cache_salt.size() > kMaxSaltBytes) {
      fields.fail("cache_salt", fmt::format("cache_salt has {} bytes; it must have 1 to {}",
                                            out.cache_salt.size(), kMaxSaltBytes));
    }
  }
  read_answer_form(fields, body, out.sampling.grammar);
  refuse_what_both_lack(fields);
}

}  // namespace tandem
