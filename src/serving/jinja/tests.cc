// The tests behind `is`.
#include <fmt/format.h>

#include <algorithm>

#include "serving/jinja/builtins.h"
#include "serving/jinja/text_operations.h"

namespace tandem::jinja {
namespace {

constexpr std::string_view kPlain[] = {"defined", "undefined", "none",    "string",   "number",   "integer",
                                       "float",   "boolean",   "mapping", "iterable", "sequence", "true",
                                       "false",   "odd",       "even",    "callable", "lower",    "upper"};
// With one argument; aliases side by side.
constexpr std::string_view kBinary[] = {
    "divisibleby", "sameas", "in", "eq", "equalto", "==",          "ne", "!=", "lt",
    "lessthan",    "<",      "le", "<=", "gt",      "greaterthan", ">",  "ge", ">="};

template <size_t N>
bool among(const std::string_view (&names)[N], std::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

Result<bool> plain_test(std::string_view name, const Value& value) {
  if (name == "defined") return !value.is_undefined();
  if (name == "undefined") return value.is_undefined();
  if (name == "none") return value.is_none();
  if (name == "string") return value.text() != nullptr;
  if (name == "number") return value.is_number();
  if (name == "integer") return value.is_integer();
  if (name == "float") return value.is_float();
  if (name == "boolean") return value.is_boolean();
  if (name == "mapping") return value.map() != nullptr;
  if (name == "iterable" || name == "sequence") {
    return value.text() != nullptr || value.list() != nullptr || value.map() != nullptr ||
           value.is_undefined();
  }
  if (name == "true") return value.is_boolean() && value.boolean();
  if (name == "false") return value.is_boolean() && !value.boolean();
  if (name == "callable") return value.function() != nullptr || value.macro() != nullptr;
  if (name == "odd" || name == "even") {
    if (!value.is_integer() && !value.is_boolean())
      return type_error(fmt::format("\"{}\" of {}", name, value.type_name()));
    return (value.integer() % 2 != 0) == (name == "odd");
  }
  // lower, upper: as Python's islower and isupper.
  const Text text = to_text(value);
  const Text folded = name == "lower" ? lower(text) : upper(text);
  const Text other = name == "lower" ? upper(text) : lower(text);
  return folded.bytes == text.bytes && other.bytes != text.bytes;
}

}  // namespace

bool is_test(std::string_view name) {
  return among(kPlain, name) || among(kBinary, name);
}

Result<bool> apply_test(BuiltinContext& context, std::string_view name, const Value& value,
                        const Arguments& arguments) {
  if (among(kPlain, name)) {
    TANDEM_TRY(arguments.only(name, 0, {}));
    return plain_test(name, value);
  }
  TANDEM_TRY(arguments.only(name, 1, {}));
  if (arguments.positional.empty())
    return type_error(fmt::format("the test \"{}\" takes one argument", name));
  const Value& other = arguments.positional[0];
  TANDEM_TRY(context.budget.spend(comparison_cost(value, other)));
  if (name == "eq" || name == "equalto" || name == "==") return equal(value, other);
  if (name == "ne" || name == "!=") return !equal(value, other);
  if (name == "in") return contains(context, other, value);
  if (name == "sameas") return value.type_name() == other.type_name() && equal(value, other);
  if (name == "divisibleby") {
    const bool whole =
        (value.is_integer() || value.is_boolean()) && (other.is_integer() || other.is_boolean());
    if (!whole || other.integer() == 0) return type_error("\"divisibleby\" takes integers, the second not 0");
    return other.integer() == -1 || value.integer() % other.integer() == 0;
  }
  const bool swapped = name[0] == 'g' || name[0] == '>';
  TANDEM_ASSIGN(const bool strict, less(swapped ? other : value, swapped ? value : other));
  const bool or_equal = name == "le" || name == "<=" || name == "ge" || name == ">=";
  return strict || (or_equal && equal(value, other));
}

}  // namespace tandem::jinja
