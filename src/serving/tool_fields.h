// The fields of a chat request that are about tools: declarations, choice, past calls and their results.
// Internal to chat_request.cc.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "serving/field_reader.h"
#include "serving/openai_request.h"

namespace tandem {

// tools, tool_choice and parallel_tool_calls. `body`: the request as it came, since the order of keys in a
// tool's schema is what the model sees.
void read_tools(FieldReader& fields, std::string_view body, const ChatFeatures& features, ChatRequest& out);

// A name that a tool may have: it stands between quotes in prompts, and is looked for there in answers.
bool is_tool_name(const nlohmann::json& value);
inline constexpr size_t kMaxTools = 128;     // OpenAI's limit
inline constexpr size_t kMaxToolName = 128;  // OpenAI has 64; names of MCP servers come before them elsewhere
// The model's format has a place for tools, and its calls can be read; otherwise fails under "tools".
void check_tools_are_supported(FieldReader& fields, const ChatFeatures& features, bool may_call);

// What a request wants of calls.
struct ToolChoice {
  bool may_call = false;
  bool required = false;
  std::string name = {};  // of the one function that may be called; "": any
};
// Holds the answer to calls as the choice and strict tools want them, by a grammar, or to the form that
// `grammar` is; without any of these nothing is held. `tools`: OpenAI's objects, keys in their order. Fails
// under "tool_choice" or "tools".
void hold_calls(FieldReader& fields, const nlohmann::ordered_json& tools, const ToolChoice& choice,
                const ChatFeatures& features, bool parallel, GrammarSpec& grammar);

// tool_calls of the assistant's message `name`.
void read_tool_calls(FieldReader& fields, const std::string& name, const ChatFeatures& features,
                     std::vector<ToolCall>& out);
// tool_call_id of the tool's message `name`.
void read_tool_call_id(FieldReader& fields, const std::string& name, const ChatFeatures& features,
                       std::string& out);

}  // namespace tandem
