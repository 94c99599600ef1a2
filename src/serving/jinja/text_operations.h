// Operations on strings that keep track of what came from the request. Private to src/serving/jinja.
#pragma once

#include <optional>
#include <vector>

#include "serving/jinja/builtins.h"

namespace tandem::jinja {

// Python's str.strip and its halves; `characters` null: white space.
Text strip(const Text& text, const Text* characters, bool left, bool right);
// Python's str.split / rsplit; `separator` null: runs of white space; `most` < 0: no limit.
std::vector<Text> split(const Text& text, const Text* separator, int64_t most);
std::vector<Text> split_right(const Text& text, const Text& separator, int64_t most);
std::vector<Text> split_lines(const Text& text);
// At most `most` replacements (< 0: all). Error: the budget.
Result<Text> replace(BuiltinContext& context, const Text& text, const Text& from, const Text& to,
                     int64_t most);
Text upper(const Text& text);
Text lower(const Text& text);
Text capitalize(const Text& text);
// jinja's filter `title`: words begin behind white space, "-", brackets; Python's method: behind any
// non-letter.
Text title(const Text& text, bool filter);
size_t length(const Text& text);  // characters

}  // namespace tandem::jinja
