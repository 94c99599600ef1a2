// ApiError: a refusal, and its JSON: in the shape that OpenAI clients read, {"error": {"message", "type",
// "param", "code"}}, or in Anthropic's. Any thread.
#pragma once

#include <expected>
#include <string>
#include <string_view>

#include "base/result.h"
#include "serving/http_types.h"

namespace tandem {

struct ApiError {
  int status = 400;
  std::string message = {};
  std::string param = {};  // the field, "" for none: null in JSON
  std::string code = {};   // "model_not_found", "context_length_exceeded", ...; "" for none
};

template <class T>
using ApiResult = std::expected<T, ApiError>;

// invalid_argument, out_of_range, unsupported: 400. not_found: 404. resource_exhausted: 429. unavailable,
// cancelled: 503. deadline_exceeded: 504. The rest: 500. A message that starts with "field: " gives `param`.
ApiError api_error(const Error& error);

// The object, without a newline.
std::string error_json(const ApiError& error);
// With Retry-After for 429 and 503.
HttpResponse error_response(const ApiError& error);

// The same in Anthropic's shape: {"type": "error", "error": {"type", "message"}, "request_id"}. `request_id`
// may be "": unknown.
std::string messages_error_json(const ApiError& error, const std::string& request_id);

// What a client that asked for `path` gets: each API has its shape.
HttpResponse refusal(const ApiError& error, std::string_view path, const std::string& request_id);

}  // namespace tandem
