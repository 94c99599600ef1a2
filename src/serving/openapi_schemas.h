// The schemas of openapi.cc: JSON texts. `fields` are the properties of a request's object.
#pragma once

namespace tandem::openapi {

// Fields of both /v1/completions and /v1/chat/completions.
extern const char* const kCommonFields;
extern const char* const kCompletionFields;
extern const char* const kChatFields;
extern const char* const kResponsesFields;
// What makes the prompt of /v1/messages; and what only an answer needs.
extern const char* const kMessagesPromptFields;
extern const char* const kMessagesAnswerFields;
extern const char* const kTokenizeFields;
extern const char* const kDetokenizeFields;
// components.schemas: replies, errors, and what several fields share.
extern const char* const kShared;

}  // namespace tandem::openapi
