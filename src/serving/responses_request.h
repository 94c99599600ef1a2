// The request of OpenAI's Responses API, /v1/responses, parsed and checked as those of openai_request.h are,
// and turned into the same values. Pure functions of the body and the context; any thread.
#pragma once

#include <string>
#include <string_view>

#include "serving/openai_request.h"

namespace tandem {

struct ResponsesRequest {
  ChatRequest chat;
  // An object: the fields of the request that its response repeats, with their defaults.
  std::string echo_json;
};

ApiResult<ResponsesRequest> parse_responses_request(std::string_view body, const RequestContext& context);

}  // namespace tandem
