// Tokens to tree. What the evaluator cannot do is refused here, naming the construct and its line.
#pragma once

#include <string_view>

#include "base/result.h"
#include "serving/jinja/ast.h"

namespace tandem::jinja {

// The root is a `block`. Errors: `unsupported` for a construct that is not implemented, `invalid_argument`
// for bad syntax.
Result<Node> parse(std::string_view source);

}  // namespace tandem::jinja
