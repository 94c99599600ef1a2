// The conversation of a request to the Responses API: instructions and input items, as the messages of a
// chat. Internal to responses_request.cc.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "serving/chat/chat_message.h"
#include "serving/field_reader.h"

namespace tandem {

// `instructions` and `input`.
void read_input(FieldReader& fields, const ChatFeatures& features, ChatInput& out);

}  // namespace tandem
