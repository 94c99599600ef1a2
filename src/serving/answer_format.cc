#include "serving/answer_format.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>

namespace tandem {

using Json = nlohmann::ordered_json;

namespace {

bool is_utf8(std::string_view text) {
  // nlohmann's serialiser checks strictly; asking it keeps one definition.
  try {
    (void)Json(std::string(text)).dump();
    return true;
  } catch (const Json::exception&) {
    return false;
  }
}

// A token that is no whole character is written as OpenAI writes it: "bytes:\xe2\x82".
std::string token_name(const std::string& bytes) {
  if (is_utf8(bytes)) return bytes;
  constexpr char kDigits[] = "0123456789abcdef";
  std::string name = "bytes:";
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    name += {'\\', 'x', kDigits[byte >> 4], kDigits[byte & 15]};
  }
  return name;
}

Json byte_list(const std::string& bytes) {
  Json list = Json::array();
  for (const char c : bytes) list.push_back(static_cast<unsigned char>(c));
  return list;
}

Json chat_token(const std::string& bytes, float logprob) {
  return {{"token", token_name(bytes)}, {"logprob", logprob}, {"bytes", byte_list(bytes)}};
}

Json chat_logprobs(const std::vector<AnswerToken>& tokens) {
  Json content = Json::array();
  for (const AnswerToken& token : tokens) content.push_back(chat_token_json(token));
  return {{"content", std::move(content)}, {"refusal", nullptr}};
}

std::span<const AnswerToken::Choice> first_of(const std::vector<AnswerToken::Choice>& top, int32_t most) {
  return std::span(top).first(std::min(top.size(), static_cast<size_t>(most)));
}

// As vLLM writes them: for each token of the prompt what was likely there, by id, null for the first.
Json prompt_logprobs(const std::vector<AnswerToken>& tokens, int32_t most) {
  const auto entry = [](const std::string& bytes, float logprob, size_t rank) -> Json {
    return {{"logprob", logprob}, {"rank", rank}, {"decoded_token", token_name(bytes)}};
  };
  Json list = Json::array();
  for (const AnswerToken& token : tokens) {
    if (token.is_first) {
      list.push_back(nullptr);
      continue;
    }
    Json choices = Json::object();
    choices[std::to_string(token.id)] = entry(token.bytes, token.logprob, token.rank);
    size_t rank = 0;
    for (const AnswerToken::Choice& choice : first_of(token.top, most)) {
      ++rank;
      if (choice.id != token.id)
        choices[std::to_string(choice.id)] = entry(choice.bytes, choice.logprob, rank);
    }
    list.push_back(std::move(choices));
  }
  return list;
}

Json completion_logprobs(const std::vector<AnswerToken>& tokens, int32_t most) {
  Json out = {{"tokens", Json::array()},
              {"token_logprobs", Json::array()},
              {"top_logprobs", Json::array()},
              {"text_offset", Json::array()}};
  for (const AnswerToken& token : tokens) {
    out["tokens"].push_back(token_name(token.bytes));
    out["text_offset"].push_back(token.text_offset);
    if (token.is_first) {
      out["token_logprobs"].push_back(nullptr);
      out["top_logprobs"].push_back(nullptr);
      continue;
    }
    out["token_logprobs"].push_back(token.logprob);
    Json top = Json::object();
    for (const AnswerToken::Choice& choice : first_of(token.top, most))
      top[token_name(choice.bytes)] = choice.logprob;
    top[token_name(token.bytes)] = token.logprob;  // the chosen one is always there
    out["top_logprobs"].push_back(std::move(top));
  }
  return out;
}

Json logprobs(const ResponseHead& head, const std::vector<AnswerToken>& tokens) {
  if (!head.logprobs) return nullptr;
  return head.chat ? chat_logprobs(tokens) : completion_logprobs(tokens, head.top_logprobs);
}

const char* finish_reason(AnswerEnd end, bool called) {
  if (end == AnswerEnd::length) return "length";
  return called ? "tool_calls" : "stop";
}

// What the answer has not, it does not say; content is null beside calls, as in OpenAI's replies.
Json message(const WholeAnswer& answer) {
  Json out = {{"role", "assistant"}, {"content", answer.text}, {"refusal", nullptr}};
  if (answer.text.empty() && (!answer.tool_calls.empty() || !answer.reasoning.empty()))
    out["content"] = nullptr;
  if (!answer.reasoning.empty()) out["reasoning_content"] = answer.reasoning;
  for (const ToolCall& call : answer.tool_calls) {
    out["tool_calls"].push_back({{"id", call.id},
                                 {"type", "function"},
                                 {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
  }
  return out;
}

Json delta_object(const OutputDelta& delta, const std::string& call_id) {
  switch (delta.kind) {
    case OutputDelta::Kind::content:
      return {{"content", delta.text}};
    case OutputDelta::Kind::reasoning:
      return {{"reasoning_content", delta.text}};
    case OutputDelta::Kind::call: {
      Json call = {{"index", delta.call},
                   {"id", call_id},
                   {"type", "function"},
                   {"function", {{"name", delta.text}, {"arguments", ""}}}};
      return {{"tool_calls", Json::array({std::move(call)})}};
    }
    case OutputDelta::Kind::arguments:
      break;
  }
  Json call = {{"index", delta.call}, {"function", {{"arguments", delta.text}}}};
  return {{"tool_calls", Json::array({std::move(call)})}};
}

Json envelope(const ResponseHead& head, const char* object) {
  return {{"id", head.id}, {"object", object}, {"created", head.created}, {"model", head.model}};
}

Json usage_object(const AnswerUsage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens},
          {"completion_tokens", usage.completion_tokens},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens},
          {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens}}}};
}

// Text is well-formed; only a client's own model name could be otherwise, and that was JSON too.
std::string dumped(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string chunk(const ResponseHead& head, Json choice) {
  Json out = envelope(head, head.chat ? "chat.completion.chunk" : "text_completion");
  out["choices"] = Json::array({std::move(choice)});
  if (head.usage_so_far) {
    // What of the prompt was cached is known at its end.
    const AnswerUsage& usage = *head.usage_so_far;
    out["usage"] = {{"prompt_tokens", usage.prompt_tokens},
                    {"completion_tokens", usage.completion_tokens},
                    {"total_tokens", usage.prompt_tokens + usage.completion_tokens}};
  } else if (head.include_usage) {
    out["usage"] = nullptr;
  }
  return dumped(out);
}

}  // namespace

Json chat_token_json(const AnswerToken& token) {
  Json out = chat_token(token.bytes, token.logprob);
  out["top_logprobs"] = Json::array();
  for (const AnswerToken::Choice& choice : token.top)
    out["top_logprobs"].push_back(chat_token(choice.bytes, choice.logprob));
  return out;
}

std::string whole_json(const ResponseHead& head, const std::vector<WholeAnswer>& answers,
                       const std::vector<std::vector<AnswerToken>>& prompts, const AnswerUsage& usage) {
  Json out = envelope(head, head.chat ? "chat.completion" : "text_completion");
  out["choices"] = Json::array();
  for (size_t i = 0; i < answers.size(); ++i) {
    Json choice = {{"index", i}};
    if (head.chat) {
      choice["message"] = message(answers[i]);
    } else {
      choice["text"] = answers[i].text;
    }
    choice["logprobs"] = logprobs(head, answers[i].tokens);
    choice["finish_reason"] = finish_reason(answers[i].end, !answers[i].tool_calls.empty());
    if (head.prompt_logprobs >= 0 && !head.chat) {
      const size_t answers_of_each = answers.size() / prompts.size();
      choice["prompt_logprobs"] = prompt_logprobs(prompts[i / answers_of_each], head.prompt_logprobs);
    }
    out["choices"].push_back(std::move(choice));
  }
  if (head.prompt_logprobs >= 0 && head.chat)
    out["prompt_logprobs"] = prompt_logprobs(prompts.front(), head.prompt_logprobs);
  out["usage"] = usage_object(usage);
  return dumped(out);
}

std::string role_chunk_json(const ResponseHead& head, uint32_t answer) {
  return chunk(head, {{"index", answer},
                      {"delta", {{"role", "assistant"}, {"content", ""}}},
                      {"logprobs", nullptr},
                      {"finish_reason", nullptr}});
}

std::string piece_chunk_json(const ResponseHead& head, uint32_t answer, const AnswerPiece& piece) {
  return chunk(head, {{"index", answer},
                      {"text", piece.text},
                      {"logprobs", logprobs(head, piece.tokens)},
                      {"finish_reason", nullptr}});
}

std::string delta_chunk_json(const ResponseHead& head, uint32_t answer, const OutputDelta& delta,
                             const std::string& call_id, const std::vector<AnswerToken>& tokens) {
  return chunk(head, {{"index", answer},
                      {"delta", delta_object(delta, call_id)},
                      {"logprobs", logprobs(head, tokens)},
                      {"finish_reason", nullptr}});
}

std::string end_chunk_json(const ResponseHead& head, uint32_t answer, AnswerEnd end, bool called) {
  Json choice = {{"index", answer}};
  if (head.chat) {
    choice["delta"] = Json::object();
  } else {
    choice["text"] = "";
  }
  choice["logprobs"] = nullptr;
  choice["finish_reason"] = finish_reason(end, called);
  return chunk(head, std::move(choice));
}

std::string usage_chunk_json(const ResponseHead& head, const AnswerUsage& usage) {
  Json out = envelope(head, head.chat ? "chat.completion.chunk" : "text_completion");
  out["choices"] = Json::array();
  out["usage"] = usage_object(usage);
  return dumped(out);
}

std::string sse_event(std::string_view data) {
  return "data: " + std::string(data) + "\n\n";
}

}  // namespace tandem
