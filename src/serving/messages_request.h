// The requests of Anthropic's Messages API, /v1/messages and /v1/messages/count_tokens, parsed and checked as
// those of openai_request.h are, and turned into the same values. Pure functions of the body and the context;
// any thread.
#pragma once

#include <string_view>

#include "serving/openai_request.h"

namespace tandem {

ApiResult<ChatRequest> parse_messages_request(std::string_view body, const RequestContext& context);
// What makes the prompt, without what only an answer needs: max_tokens, sampling, stream.
ApiResult<ChatRequest> parse_count_tokens_request(std::string_view body, const RequestContext& context);

}  // namespace tandem
