// DeepSeek-V4's prompt format, which its releases describe by a program instead of a chat template.
//
// Chat mode closes the reasoning before the answer begins (<｜Assistant｜></think>), thinking mode opens it
// (<｜Assistant｜><think>). Variables, from chat_template_kwargs:
//   thinking or enable_thinking  thinking mode; default: off, unless reasoning_effort asks for it
//   reasoning_effort             none (chat mode) | minimal | low | medium | high | xhigh | max
//   drop_thinking                default true: reasoning before the last user turn is left out, and developer
//                                turns with it; it stays whatever this says when the request has tools
// Pure; any thread.
#pragma once

#include "serving/chat/chat_message.h"

namespace tandem {

struct DeepseekV4Style {
  // The releases with DSpark know three efforts (low, high, max); the ones before know one, max, whose text
  // is what the later ones call high.
  bool three_efforts = false;
};

// Exactly one BOS, at the start. Errors: `invalid_argument` naming the message or the variable.
Result<ChatPrompt> render_deepseek_v4(const ChatInput& input, const DeepseekV4Style& style);

}  // namespace tandem
