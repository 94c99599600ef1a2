// Replies in the shape of OpenAI's Responses API: output items (reasoning, message, function_call), whole or
// as its events. A listener of one generation with one answer; see text_generation.h for who calls it.
#pragma once

#include <memory>
#include <string>

#include "serving/answer_reply.h"

namespace tandem {

// `echo_json`: what the response repeats of its request. Of a stream: its first events come with the first
// token, so that a refusal before it has a status of its own; an error after it is response.failed, the last
// event.
std::shared_ptr<AnswerListener> make_response_reply(ReplyPlan plan, std::shared_ptr<ResponseWriter> writer,
                                                    std::string echo_json, bool stream);

}  // namespace tandem
