// The JSON of answers: whole replies and stream chunks of /v1/completions and /v1/chat/completions, in the
// shapes that OpenAI clients read. Pure functions; any thread.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "serving/chat/chat_message.h"
#include "serving/chat/output_parser.h"
#include "serving/text_generation.h"

namespace tandem {

struct ResponseHead {
  bool chat = false;
  std::string id;  // "chatcmpl-..." or "cmpl-..."
  std::string model;
  int64_t created = 0;           // seconds since 1970
  bool logprobs = false;         // the fields are there, if only as an empty list
  int32_t top_logprobs = 0;      // of each token, at most: a prompt may have been asked for more
  int32_t prompt_logprobs = -1;  // vLLM's field: the most of each token of the prompt; -1: it is not there
  bool include_usage = false;    // streams: every chunk has "usage", null in all but the last
  std::optional<AnswerUsage> usage_so_far = {};  // then of the chunk's answer, in place of null
};

struct WholeAnswer {
  std::string text;
  std::string reasoning;             // chat only
  std::vector<ToolCall> tool_calls;  // chat only
  std::vector<AnswerToken> tokens;   // with those of the prompt, where it is echoed
  AnswerEnd end = AnswerEnd::stop;
};

// `prompts`: of each prompt its tokens, where head.prompt_logprobs asks for them; its answers follow each
// other.
std::string whole_json(const ResponseHead& head, const std::vector<WholeAnswer>& answers,
                       const std::vector<std::vector<AnswerToken>>& prompts, const AnswerUsage& usage);

// A token as chat and responses write it: token, logprob, bytes, top_logprobs.
nlohmann::ordered_json chat_token_json(const AnswerToken& token);

// The role, before anything else of an answer. Chat only.
std::string role_chunk_json(const ResponseHead& head, uint32_t answer);
// Completions only.
std::string piece_chunk_json(const ResponseHead& head, uint32_t answer, const AnswerPiece& piece);
// Chat only. `call_id`: of a call, with its first delta.
std::string delta_chunk_json(const ResponseHead& head, uint32_t answer, const OutputDelta& delta,
                             const std::string& call_id, const std::vector<AnswerToken>& tokens);
// `called`: the answer has tool calls.
std::string end_chunk_json(const ResponseHead& head, uint32_t answer, AnswerEnd end, bool called);
std::string usage_chunk_json(const ResponseHead& head, const AnswerUsage& usage);

// One server-sent event.
std::string sse_event(std::string_view data);

}  // namespace tandem
