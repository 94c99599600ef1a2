#include "serving/openapi_schemas.h"

namespace tandem::openapi {

const char* const kCommonFields = R"json({
  "max_tokens": {"type": ["integer", "null"], "minimum": 1, "maximum": 2147483647},
  "temperature": {"type": ["number", "null"], "minimum": 0, "maximum": 2},
  "top_p": {"type": ["number", "null"], "minimum": 0, "maximum": 1},
  "top_k": {"type": ["integer", "null"], "minimum": -1, "maximum": 2147483647},
  "min_p": {"type": ["number", "null"], "minimum": 0, "maximum": 1},
  "repetition_penalty": {"type": ["number", "null"], "exclusiveMinimum": 0, "maximum": 100},
  "frequency_penalty": {"type": ["number", "null"], "minimum": -2, "maximum": 2},
  "presence_penalty": {"type": ["number", "null"], "minimum": -2, "maximum": 2},
  "logit_bias": {"type": ["object", "null"], "description": "token id to bias",
                 "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100}},
  "seed": {"type": ["integer", "null"], "minimum": -9223372036854775808, "maximum": 9223372036854775807},
  "n": {"type": ["integer", "null"], "minimum": 1, "maximum": 128},
  "stop": {"anyOf": [{"type": "string", "minLength": 1}, {"type": "null"},
                     {"type": "array", "maxItems": 16, "items": {"type": "string", "minLength": 1}}]},
  "stop_token_ids": {"type": ["array", "null"], "items": {"type": "integer", "minimum": 0}},
  "min_tokens": {"type": ["integer", "null"], "minimum": 0, "maximum": 2147483647},
  "ignore_eos": {"type": ["boolean", "null"]},
  "prompt_logprobs": {"type": ["integer", "null"], "minimum": 0, "maximum": 20, "description": "not with stream"},
  "skip_special_tokens": {"type": ["boolean", "null"]},
  "spaces_between_special_tokens": {"enum": [true, null]},
  "priority": {"type": ["integer", "null"], "minimum": -2147483647, "maximum": 2147483647},
  "cache_salt": {"type": ["string", "null"], "minLength": 1, "maxLength": 256},
  "timeout": {"type": ["number", "null"], "exclusiveMinimum": 0, "maximum": 86400, "description": "seconds"},
  "stream": {"type": ["boolean", "null"]},
  "stream_options": {"type": ["object", "null"], "additionalProperties": false,
                     "properties": {"include_usage": {"type": ["boolean", "null"]},
                                    "include_obfuscation": {"enum": [false, null]},
                                    "continuous_usage_stats": {"type": ["boolean", "null"]}}},
  "response_format": {"type": ["object", "null"], "required": ["type"], "properties": {
    "type": {"enum": ["text", "json_object", "json_schema"]}, "json_schema": {"type": "object"}}},
  "structured_outputs": {"type": ["object", "null"]},
  "guided_json": {"type": ["object", "boolean", "string", "null"]},
  "guided_regex": {"type": ["string", "null"], "minLength": 1},
  "guided_choice": {"type": ["array", "null"], "minItems": 1, "items": {"type": "string", "minLength": 1}},
  "guided_grammar": {"type": ["string", "null"], "minLength": 1},
  "guided_decoding_backend": {"description": "accepted, without effect"},
  "json_schema": {"type": ["object", "boolean", "string", "null"]},
  "grammar": {"type": ["string", "null"], "minLength": 1, "description": "GBNF"},
  "service_tier": {"enum": ["auto", "default", null]},
  "user": {"description": "accepted, without effect"},
  "metadata": {"description": "accepted, without effect"},
  "safety_identifier": {"description": "accepted, without effect"},
  "prompt_cache_key": {"description": "accepted, without effect"},
  "prompt_cache_retention": {"description": "accepted, without effect"}
})json";

const char* const kCompletionFields = R"json({
  "prompt": {"anyOf": [{"type": "string", "minLength": 1},
                       {"type": "array", "minItems": 1, "items": {"type": "string", "minLength": 1}},
                       {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}},
                       {"type": "array", "minItems": 1, "items": {"type": "array", "minItems": 1,
                        "items": {"type": "integer", "minimum": 0}}}]},
  "echo": {"type": ["boolean", "null"]},
  "logprobs": {"type": ["integer", "null"], "minimum": 0, "maximum": 20},
  "best_of": {"type": ["integer", "null"], "minimum": 1, "maximum": 128, "description": "equal to n"},
  "add_special_tokens": {"type": ["boolean", "null"]},
  "parse_special_tokens": {"type": ["boolean", "null"]},
  "suffix": {"enum": ["", null]}
})json";

const char* const kChatFields = R"json({
  "messages": {"type": "array", "minItems": 1, "items": {"$ref": "#/components/schemas/ChatMessage"}},
  "max_completion_tokens": {"type": ["integer", "null"], "minimum": 1, "maximum": 2147483647},
  "logprobs": {"type": ["boolean", "null"]},
  "top_logprobs": {"type": ["integer", "null"], "minimum": 0, "maximum": 20},
  "tools": {"type": ["array", "null"], "maxItems": 128, "items": {"type": "object", "required": ["type", "function"],
    "additionalProperties": false, "properties": {"type": {"const": "function"},
      "function": {"$ref": "#/components/schemas/Function"}}}},
  "tool_choice": {"anyOf": [{"enum": ["auto", "none", "required", null]},
    {"type": "object", "required": ["function"], "properties": {"type": {"const": "function"},
      "function": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}}}}]},
  "parallel_tool_calls": {"type": ["boolean", "null"]},
  "add_generation_prompt": {"type": ["boolean", "null"]},
  "chat_template_kwargs": {"type": ["object", "null"]},
  "reasoning_effort": {"type": ["string", "null"]},
  "thinking_token_budget": {"type": ["integer", "null"], "minimum": 0, "maximum": 2147483647},
  "function_call": {"enum": ["none", "auto", null]},
  "modalities": {"enum": [["text"], null]}
})json";

const char* const kResponsesFields = R"json({
  "input": {"anyOf": [{"type": "string"}, {"type": "array", "minItems": 1, "items": {"type": "object"}}]},
  "instructions": {"type": ["string", "null"]},
  "max_output_tokens": {"type": ["integer", "null"], "minimum": 1, "maximum": 2147483647},
  "temperature": {"type": ["number", "null"], "minimum": 0, "maximum": 2},
  "top_p": {"type": ["number", "null"], "minimum": 0, "maximum": 1},
  "top_logprobs": {"type": ["integer", "null"], "minimum": 0, "maximum": 20},
  "include": {"type": ["array", "null"], "items": {"enum": ["message.output_text.logprobs",
                                                            "reasoning.encrypted_content"]}},
  "timeout": {"type": ["number", "null"], "exclusiveMinimum": 0, "maximum": 86400, "description": "seconds"},
  "stream": {"type": ["boolean", "null"]},
  "stream_options": {"type": ["object", "null"]},
  "text": {"type": ["object", "null"], "additionalProperties": false, "properties": {
    "format": {"type": ["object", "null"]}, "verbosity": {"enum": ["medium", null]}}},
  "tools": {"type": ["array", "null"], "maxItems": 128, "items": {"type": "object", "required": ["type", "name"]}},
  "tool_choice": {"anyOf": [{"enum": ["auto", "none", "required", null]},
    {"type": "object", "required": ["type", "name"], "properties": {"type": {"const": "function"},
      "name": {"type": "string"}}}]},
  "parallel_tool_calls": {"type": ["boolean", "null"]},
  "reasoning": {"type": ["object", "null"]},
  "seed": {"type": ["integer", "null"], "minimum": -9223372036854775808, "maximum": 9223372036854775807},
  "chat_template_kwargs": {"type": ["object", "null"]},
  "service_tier": {"enum": ["auto", "default", null]},
  "truncation": {"enum": ["disabled", null]},
  "user": {"description": "accepted, without effect"},
  "metadata": {"description": "repeated in the response"},
  "safety_identifier": {"description": "accepted, without effect"},
  "prompt_cache_key": {"description": "accepted, without effect"},
  "prompt_cache_options": {"description": "accepted, without effect"},
  "prompt_cache_retention": {"description": "accepted, without effect"}
})json";

const char* const kMessagesPromptFields = R"json({
  "messages": {"type": "array", "minItems": 1, "items": {"type": "object", "required": ["role", "content"],
    "additionalProperties": false, "properties": {"role": {"enum": ["user", "assistant", "system"]},
      "content": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object", "required": ["type"]}}]}}}},
  "system": {"anyOf": [{"type": ["string", "null"]}, {"type": "array", "items": {"type": "object", "required": ["type"]}}]},
  "tools": {"type": ["array", "null"], "maxItems": 128,
            "items": {"type": "object", "required": ["name", "input_schema"]}},
  "tool_choice": {"type": ["object", "null"], "required": ["type"], "additionalProperties": false, "properties": {
    "type": {"enum": ["auto", "any", "tool", "none"]}, "name": {"type": "string"},
    "disable_parallel_tool_use": {"type": ["boolean", "null"]}}},
  "thinking": {"type": ["object", "null"], "required": ["type"], "additionalProperties": false, "properties": {
    "type": {"enum": ["enabled", "adaptive", "disabled"]}, "display": {"enum": ["summarized", null]},
    "budget_tokens": {"type": ["integer", "null"], "minimum": 1, "maximum": 2147483647}}},
  "output_config": {"type": ["object", "null"], "additionalProperties": false, "properties": {
    "effort": {"type": ["string", "null"]}, "format": {"type": ["object", "null"]}}},
  "chat_template_kwargs": {"type": ["object", "null"]},
  "speed": {"enum": ["standard", null]},
  "cache_control": {"description": "accepted, without effect"},
  "metadata": {"description": "accepted, without effect"},
  "user_profile_id": {"description": "accepted, without effect"},
  "workspace_id": {"description": "accepted, without effect"}
})json";

const char* const kMessagesAnswerFields = R"json({
  "max_tokens": {"type": "integer", "minimum": 1, "maximum": 2147483647},
  "temperature": {"type": ["number", "null"], "minimum": 0, "maximum": 1},
  "top_p": {"type": ["number", "null"], "minimum": 0, "maximum": 1},
  "top_k": {"type": ["integer", "null"], "minimum": 0, "maximum": 2147483647},
  "seed": {"type": ["integer", "null"], "minimum": -9223372036854775808, "maximum": 9223372036854775807},
  "stop_sequences": {"type": ["array", "null"], "maxItems": 16, "items": {"type": "string", "minLength": 1}},
  "timeout": {"type": ["number", "null"], "exclusiveMinimum": 0, "maximum": 86400, "description": "seconds"},
  "stream": {"type": ["boolean", "null"]},
  "service_tier": {"enum": ["auto", "standard_only", null]}
})json";

const char* const kTokenizeFields = R"json({
  "prompt": {"type": "string"},
  "add_special_tokens": {"type": ["boolean", "null"]},
  "parse_special_tokens": {"type": ["boolean", "null"]},
  "return_token_strs": {"type": ["boolean", "null"]}
})json";

const char* const kDetokenizeFields = R"json({
  "tokens": {"type": "array", "items": {"type": "integer", "minimum": 0}}
})json";

const char* const kShared = R"json({
  "Error": {"type": "object", "required": ["error"], "properties": {"error": {"type": "object",
    "required": ["message", "type", "param", "code"], "properties": {"message": {"type": "string"},
      "type": {"type": "string"}, "param": {"type": ["string", "null"]}, "code": {"type": ["string", "null"]}}}}},
  "MessagesError": {"type": "object", "required": ["type", "error", "request_id"], "properties": {
    "type": {"const": "error"}, "request_id": {"type": ["string", "null"]},
    "error": {"type": "object", "required": ["type", "message"], "properties": {"type": {"type": "string"},
      "message": {"type": "string"}}}}},
  "Function": {"type": "object", "required": ["name"], "additionalProperties": false, "properties": {
    "name": {"type": "string", "pattern": "^[A-Za-z0-9_.:/-]{1,128}$"}, "description": {"type": ["string", "null"]},
    "parameters": {"type": ["object", "null"]}, "strict": {"type": ["boolean", "null"]}}},
  "ChatMessage": {"type": "object", "required": ["role"], "properties": {
    "role": {"enum": ["system", "developer", "user", "assistant", "tool"]},
    "content": {"anyOf": [{"type": ["string", "null"]}, {"type": "array", "minItems": 1, "items": {"type": "object",
      "required": ["type", "text"], "properties": {"type": {"const": "text"}, "text": {"type": "string"}}}}]},
    "name": {"type": ["string", "null"]}, "reasoning_content": {"type": ["string", "null"]},
    "tool_calls": {"type": ["array", "null"], "items": {"type": "object"}},
    "tool_call_id": {"type": ["string", "null"]}}},
  "Usage": {"type": "object", "required": ["prompt_tokens", "completion_tokens", "total_tokens"]},
  "Completion": {"type": "object", "required": ["id", "object", "created", "model", "choices", "usage"],
    "properties": {"object": {"const": "text_completion"}, "usage": {"$ref": "#/components/schemas/Usage"},
      "choices": {"type": "array", "minItems": 1, "items": {"type": "object",
        "required": ["index", "text", "logprobs", "finish_reason"]}}}},
  "ChatCompletion": {"type": "object", "required": ["id", "object", "created", "model", "choices", "usage"],
    "properties": {"object": {"const": "chat.completion"}, "usage": {"$ref": "#/components/schemas/Usage"},
      "choices": {"type": "array", "minItems": 1, "items": {"type": "object",
        "required": ["index", "message", "logprobs", "finish_reason"]}}}},
  "Response": {"type": "object", "required": ["id", "object", "status", "model", "output", "usage", "error"],
    "properties": {"object": {"const": "response"}, "output": {"type": "array"},
      "status": {"enum": ["completed", "incomplete"]}}},
  "Message": {"type": "object", "required": ["id", "type", "role", "model", "content", "stop_reason", "stop_sequence",
    "usage"], "properties": {"type": {"const": "message"}, "content": {"type": "array"},
      "stop_reason": {"enum": ["end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"]}}},
  "TokenCount": {"type": "object", "required": ["input_tokens"], "properties": {"input_tokens": {"type": "integer"}}},
  "Tokens": {"type": "object", "required": ["count", "max_model_len", "tokens", "token_strs"], "properties": {
    "tokens": {"type": "array", "items": {"type": "integer"}}}},
  "Text": {"type": "object", "required": ["prompt"], "properties": {"prompt": {"type": "string"}}},
  "Model": {"type": "object", "required": ["id", "object", "created", "owned_by", "max_model_len"]},
  "Models": {"type": "object", "required": ["object", "data"], "properties": {"data": {"type": "array",
    "items": {"$ref": "#/components/schemas/Model"}}}},
  "Event": {"type": "object", "required": ["data"], "description": "server-sent, with stream: true", "properties": {
    "data": {"type": "string"}, "event": {"type": "string"}}},
  "State": {"type": "object", "required": ["status"], "properties": {"status": {"type": "string"}}},
  "Props": {"type": "object", "required": ["model", "limits", "defaults"]}
})json";

}  // namespace tandem::openapi
