// From the checkpoint's template text to the function that renders messages with it.
#pragma once

#include "base/result.h"
#include "serving/model_files.h"
#include "serving/served_model.h"

namespace tandem {

// Errors: the template has a construct that cannot be rendered, named with its file.
Result<ChatRenderer> make_chat_renderer(const ChatTemplateSource& source);

}  // namespace tandem
