// Replies in the shape of Anthropic's Messages API: content blocks (thinking, text, tool_use), whole or as
// its events. Listeners of one generation with one answer; see text_generation.h for who calls them.
#pragma once

#include <memory>

#include "serving/answer_reply.h"

namespace tandem {

std::shared_ptr<AnswerListener> make_message_reply(ReplyPlan plan, std::shared_ptr<ResponseWriter> writer,
                                                   std::string request_id);
// message_start comes with the first token, so that a refusal before it still has its own status; an error
// after it is an event, and the stream ends without message_stop.
std::shared_ptr<AnswerListener> make_message_stream(ReplyPlan plan, std::shared_ptr<ResponseWriter> writer,
                                                    std::string request_id);

}  // namespace tandem
