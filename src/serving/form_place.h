// Where in a chat's answer its form holds: behind the reasoning, which is free, or in one of harmony's
// messages.
#pragma once

#include <optional>

#include "grammar/grammar_spec.h"
#include "serving/api_error.h"
#include "serving/served_model.h"

namespace tandem {

// Says in `grammar`, a request's form or budget of reasoning, what the model marks its reasoning with; of a
// model that writes harmony it becomes a form of messages. `reasoning_open`: the prompt ends inside
// reasoning. An error when the model's tokenizer has not the tokens for it, or its notation no budgets.
std::optional<ApiError> place_form(const ServedModel& model, bool reasoning_open, GrammarSpec& grammar);

}  // namespace tandem
