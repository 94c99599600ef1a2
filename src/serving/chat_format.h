// From what a checkpoint says of its chats to how a server speaks them: the function that renders a prompt,
// what that format has a place for, and how its answers are taken apart.
#pragma once

#include "base/result.h"
#include "serving/model_files.h"
#include "serving/served_model.h"

namespace tandem {

struct ChatFormat {
  ChatRenderer render;  // empty: the checkpoint has no template, and no format that is known without one
  ChatFeatures features;
  OutputFormat output;
};

// A template wins over the format that belongs to the model's type. What a template has a place for is found
// by rendering probes with it. Errors: the template has a construct that cannot be rendered, named with its
// file; `choice` names a parser that does not exist.
Result<ChatFormat> make_chat_format(const ChatTemplateSource& source, const OutputChoice& choice);

}  // namespace tandem
