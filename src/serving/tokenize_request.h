// The requests of /tokenize and /detokenize, as vLLM has them, parsed and checked. Pure functions of the body
// and the context; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "serving/openai_request.h"

namespace tandem {

struct TokenizeRequest {
  bool is_chat = false;
  ChatInput chat;      // of a chat
  std::string prompt;  // else
  bool add_special_tokens = true;
  bool parse_special_tokens = false;
  bool return_token_strs = false;
};

// With `messages` the fields are those of a chat request, of which only those that make the prompt count.
ApiResult<TokenizeRequest> parse_tokenize_request(std::string_view body, const RequestContext& context);
// The ids, all of the vocabulary.
ApiResult<std::vector<int32_t>> parse_detokenize_request(std::string_view body,
                                                         const RequestContext& context);

}  // namespace tandem
