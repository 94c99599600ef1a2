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

// tool_calls of the assistant's message `name`.
void read_tool_calls(FieldReader& fields, const std::string& name, const ChatFeatures& features,
                     std::vector<ToolCall>& out);
// tool_call_id of the tool's message `name`.
void read_tool_call_id(FieldReader& fields, const std::string& name, const ChatFeatures& features,
                       std::string& out);

}  // namespace tandem
