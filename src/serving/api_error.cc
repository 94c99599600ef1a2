#include "serving/api_error.h"

#include <nlohmann/json.hpp>

namespace tandem {

namespace {

// One generation step is far shorter, a queue that is full empties in seconds.
constexpr const char* kRetryAfterSeconds = "1";

int status_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::invalid_argument:
    case ErrorCode::out_of_range:
    case ErrorCode::unsupported:
      return 400;
    case ErrorCode::not_found:
      return 404;
    case ErrorCode::resource_exhausted:
    case ErrorCode::would_block:
      return 429;
    case ErrorCode::unavailable:
    case ErrorCode::cancelled:
      return 503;
    case ErrorCode::deadline_exceeded:
      return 504;
    case ErrorCode::data_loss:
    case ErrorCode::internal:
      break;
  }
  return 500;
}

const char* type_of(int status) {
  if (status == 429) return "rate_limit_error";
  if (status == 503 || status == 504) return "service_unavailable_error";
  return status < 500 ? "invalid_request_error" : "server_error";
}

// Anthropic's words: what its clients tell apart.
const char* messages_type_of(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 503:
      return "overloaded_error";
    case 408:
    case 504:
      return "timeout_error";
    default:
      return status < 500 ? "invalid_request_error" : "api_error";
  }
}

void add_retry_after(HttpResponse& response) {
  if (response.status == 429 || response.status == 503)
    response.headers.emplace_back("retry-after", kRetryAfterSeconds);
}

// A message may quote what a client sent: bytes that are no UTF-8 are replaced, never thrown on.
std::string dumped(const nlohmann::ordered_json& body) {
  return body.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace

ApiError api_error(const Error& error) {
  ApiError result{.status = status_of(error.code), .message = error.message};
  if (result.status == 504) result.code = "timeout";
  const size_t colon = error.message.find(": ");
  const std::string_view head = std::string_view(error.message).substr(0, colon);
  const bool is_field = colon != std::string::npos &&
                        head.find_first_not_of("abcdefghijklmnopqrstuvwxyz_[]0123456789") == head.npos;
  if (result.status == 400 && is_field) result.param = std::string(head);
  return result;
}

std::string error_json(const ApiError& error) {
  nlohmann::ordered_json body;
  body["message"] = error.message;
  body["type"] = type_of(error.status);
  body["param"] = error.param.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(error.param);
  body["code"] = error.code.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(error.code);
  return dumped({{"error", body}});
}

HttpResponse error_response(const ApiError& error) {
  HttpResponse response{.status = error.status, .body = error_json(error) + "\n"};
  add_retry_after(response);
  return response;
}

std::string messages_error_json(const ApiError& error, const std::string& request_id) {
  nlohmann::ordered_json body = {
      {"type", "error"}, {"error", {{"type", messages_type_of(error.status)}, {"message", error.message}}}};
  body["request_id"] = request_id.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(request_id);
  return dumped(body);
}

HttpResponse refusal(const ApiError& error, std::string_view path, const std::string& request_id) {
  if (path != "/v1/messages" && !path.starts_with("/v1/messages/")) return error_response(error);
  HttpResponse response{.status = error.status, .body = messages_error_json(error, request_id) + "\n"};
  if (!request_id.empty()) response.headers.emplace_back("request-id", request_id);
  add_retry_after(response);
  return response;
}

}  // namespace tandem
