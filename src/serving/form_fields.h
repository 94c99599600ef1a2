// The fields of a request that give its answer a form: OpenAI's response_format, vLLM's structured_outputs
// and guided_* and llama.cpp's grammar and json_schema. Internal to request parsing.
#pragma once

#include <string_view>

#include "grammar/grammar_spec.h"
#include "serving/field_reader.h"

namespace tandem {

// At most one of them may be given. A schema or grammar that cannot be kept fails under the field's name.
// `body`: the request as it came, since properties come in the order of the schema.
void read_answer_form(FieldReader& fields, std::string_view body, GrammarSpec& out);

}  // namespace tandem
