// AnswerReply: writes a generation's answers to an HTTP client, as one JSON object or as a stream of
// server-sent events. A listener of TextGeneration: called on the delivery thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "serving/answer_format.h"
#include "serving/http_types.h"

namespace tandem {

struct ReplyPlan {
  ResponseHead head;
  uint32_t answers = 1;
  uint32_t answers_per_prompt = 1;
  uint32_t prompt_tokens = 0;     // of the first prompt
  uint32_t max_tokens = 0;        // as asked for
  std::vector<std::string> echo;  // one for each prompt: put before its answers; empty for none
  bool echo_logprobs = false;     // its tokens too
  // [prompts], tokens: for streams that say in each chunk what was used; else empty.
  std::vector<uint32_t> prompt_sizes;
  OutputFormat output_format;  // of chat: what answers are taken apart into
  OutputOptions output_options;
};

// An id that is unlike any other, of this server or another: "call_..." with the prefix "call_".
std::string new_id(const char* prefix);

std::shared_ptr<AnswerListener> make_whole_reply(ReplyPlan plan, std::shared_ptr<ResponseWriter> writer);
// The status is sent with the first token, so that a refusal before it still has its own status; an error
// after it is an event of its own, and the stream ends without [DONE].
std::shared_ptr<AnswerListener> make_stream_reply(ReplyPlan plan, std::shared_ptr<ResponseWriter> writer);

}  // namespace tandem
