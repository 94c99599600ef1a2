// JSON schemas (draft 2020-12, and what OpenAPI and pydantic write) as grammars.
//
// Read: type, enum, const, properties, required, additionalProperties, items, prefixItems, minItems,
// maxItems, minLength, maxLength, pattern, format, minimum, maximum, exclusiveMinimum, exclusiveMaximum (of
// integers), anyOf, oneOf (as anyOf), allOf of objects, $ref inside the document, $defs, nullable. Other
// assertions (not, if, patternProperties, uniqueItems, ...) are refused by name: a text that they forbid
// would pass.
//
// Narrower than the schema, on purpose: properties come in the order of the document; an object with
// properties has no others unless additionalProperties allows them; whitespace is at most a space or an
// indented line. Pure; any thread.
#pragma once

#include <string_view>

#include "base/result.h"
#include "grammar/grammar_expression.h"

namespace tandem {

// Errors name the keyword and its place in the document ("#/properties/age"): `invalid_argument` for what is
// no schema, `unsupported` for a keyword that is not read.
Result<GrammarRules> json_schema_grammar(std::string_view schema);

// Any JSON object, as `response_format: {"type": "json_object"}` wants it.
GrammarRules json_object_grammar();

}  // namespace tandem
