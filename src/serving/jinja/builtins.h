// Filters, tests, methods and global functions of the Jinja subset. Private to src/serving/jinja.
#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "serving/jinja/value.h"

namespace tandem::jinja {

// What one rendering may use, so that no template and no message can hang or exhaust the process.
struct Budget {
  uint64_t steps;  // nodes evaluated, items visited
  uint64_t bytes;  // of all strings and lists that are made
  Status spend(uint64_t count);
  Status grow(uint64_t count);
};

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;

  // The argument of that place or name, or null.
  const Value* get(size_t index, std::string_view name) const;
  // Error when there are more positional ones than `most` or named ones outside `names`.
  Status only(std::string_view what, size_t most, std::initializer_list<std::string_view> names) const;
};

struct BuiltinContext {
  Budget& budget;
  std::chrono::system_clock::time_point now;
};

// The parser refuses what these do not know, so that a template fails when it is loaded.
bool is_filter(std::string_view name);
bool is_test(std::string_view name);
bool is_method(std::string_view name);
bool is_function(std::string_view name);

Result<Value> apply_filter(BuiltinContext& context, std::string_view name, const Value& value,
                           const Arguments& arguments);
Result<bool> apply_test(BuiltinContext& context, std::string_view name, const Value& value,
                        const Arguments& arguments);
Result<Value> call_method(BuiltinContext& context, std::string_view name, const Value& object,
                          const Arguments& arguments);
Result<Value> call_function(BuiltinContext& context, std::string_view name, const Arguments& arguments);

// Shared by the evaluator: the items of an iterable (characters of a string, keys of a dict, nothing of an
// undefined value).
Result<std::vector<Value>> iterate(BuiltinContext& context, const Value& value);
// Python's `in`.
Result<bool> contains(BuiltinContext& context, const Value& container, const Value& item);
// value.name or value["name"]; undefined when there is none.
Value member(const Value& value, std::string_view name);
Result<Value> subscript(const Value& value, const Value& key);
Result<Value> slice(BuiltinContext& context, const Value& value, const Value& begin, const Value& end,
                    const Value& step);
// The error of a wrong operand or argument: one line, naming the types.
std::unexpected<Error> type_error(std::string message);

}  // namespace tandem::jinja
