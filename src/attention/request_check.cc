#include "attention/request_check.h"

#include <string>

#include "attention/sampler.h"

namespace tandem {

Status check_request(const GenerationRequest& request, const EngineLimits& limits) {
  const size_t prompt = request.prompt.size();
  if (prompt == 0)
    return make_error(ErrorCode::invalid_argument, "prompt: it has no tokens; at least one is needed");
  if (prompt >= limits.max_context_tokens) {
    return make_error(ErrorCode::invalid_argument,
                      "prompt: " + std::to_string(prompt) +
                          " tokens leave no room for an answer in a context of " +
                          std::to_string(limits.max_context_tokens) + " tokens; shorten it");
  }
  if (prompt > limits.kv_pool_tokens) {
    return make_error(ErrorCode::invalid_argument,
                      "prompt: " + std::to_string(prompt) + " tokens do not fit the KV pool of " +
                          std::to_string(limits.kv_pool_tokens) +
                          " tokens; raise serving.kv_cache_tokens or shorten it");
  }
  for (int32_t token : request.prompt) {
    if (token < 0 || static_cast<uint32_t>(token) >= limits.vocab_size) {
      return make_error(ErrorCode::invalid_argument, "prompt: token id " + std::to_string(token) +
                                                         " is not in 0.." +
                                                         std::to_string(limits.vocab_size - 1));
    }
  }
  return validate_sampling(request.sampling, limits.vocab_size);
}

std::unexpected<Error> queue_is_full(const EngineLimits& limits) {
  return make_error(ErrorCode::resource_exhausted, "the queue of " + std::to_string(limits.max_queue) +
                                                       " requests is full; try again later");
}

}  // namespace tandem
