// The conversation of a request to Anthropic's Messages API: system and messages, whose content is text or a
// list of blocks, as the messages of a chat. Internal to messages_request.cc.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "serving/chat/chat_message.h"
#include "serving/field_reader.h"

namespace tandem {

// `system`: the first message, if it is there.
void read_system(FieldReader& fields, ChatInput& out);
// `messages`. `written`: the request with its keys in their order, since a call's arguments are text of the
// prompt.
void read_blocks(FieldReader& fields, const nlohmann::ordered_json& written, const ChatFeatures& features,
                 ChatInput& out);

}  // namespace tandem
