// A conversation as values: what a request says and what a prompt is made of. Plain data; no JSON here.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "tokenizer/tokenizer.h"

namespace tandem {

struct ToolCall {
  std::string id = {};
  std::string name = {};
  std::string arguments = {};  // the JSON text of an object, as the model or the client wrote it
};

struct ChatMessage {
  std::string role = {};
  std::string content = {};
  bool has_content = true;  // false: null, as it is beside tool calls
  std::string name = {};    // "" for none
  std::string reasoning_content = {};
  std::vector<ToolCall> tool_calls = {};  // of an assistant
  std::string tool_call_id = {};          // of a tool: the call that it answers
};

struct ChatInput {
  std::vector<ChatMessage> messages;
  bool add_generation_prompt = true;
  std::string tools_json;  // an array of OpenAI's tool objects, keys in the client's order; "" for none
  std::string kwargs_json = "{}";  // an object: more variables of the template
};

// A rendered chat. Control tokens come from the template alone: what came from the request is plain text, so
// a message that contains "<|im_end|>" stays a message.
struct ChatPrompt {
  std::string text;
  std::vector<TextRange> plain_ranges;  // ascending, disjoint: bytes that came from the request
};

// Errors: what the model's format refuses of these messages or variables.
using ChatRenderer = std::function<Result<ChatPrompt>(const ChatInput& input)>;

// What a model's prompt format has a place for: the rest is refused by name instead of being left out.
struct ChatFeatures {
  bool tools = false;                // declarations
  bool tool_messages = false;        // past calls and their results
  bool reasoning_effort = false;     // a switch for how long to think
  bool reasons = false;              // answers may begin with reasoning that is marked as such
  std::string thinking_switch = {};  // the variable that turns reasoning on and off; "" for none
  bool latest_reminder = false;      // DeepSeek's role of that name, and developer as a role of its own
  bool reads_tool_calls = false;     // answers with tool calls are parsed, or are wanted as text
  std::string call_format = {};  // that a grammar of calls is written in (tool_call_grammar.h); "": none is
};

}  // namespace tandem
