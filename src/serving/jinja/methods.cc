// Methods of strings, dicts and lists: those of Python that do not change their object.
#include <fmt/format.h>

#include <algorithm>

#include "serving/jinja/builtins.h"
#include "serving/jinja/text_operations.h"
#include "tokenizer/unicode.h"

namespace tandem::jinja {
namespace {

constexpr std::string_view kStringMethods[] = {
    "split",   "rsplit", "strip",      "lstrip",       "rstrip",       "startswith", "endswith",
    "replace", "upper",  "lower",      "title",        "capitalize",   "find",       "rfind",
    "count",   "join",   "splitlines", "removeprefix", "removesuffix", "isdigit"};
constexpr std::string_view kDictMethods[] = {"items", "keys", "values", "get"};
constexpr std::string_view kListMethods[] = {"count", "index"};

template <size_t N>
bool among(const std::string_view (&names)[N], std::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

Result<Value> list_of(BuiltinContext& context, std::vector<Text> texts) {
  std::vector<Value> items;
  uint64_t bytes = 0;
  for (Text& text : texts) {
    bytes += text.bytes.size() + sizeof(Text) + sizeof(Value);
    items.emplace_back(std::move(text));
  }
  TANDEM_TRY(context.budget.grow(bytes));
  return Value::list(std::move(items));
}

// An argument that must be a string; null when it is absent or None.
Result<const Text*> text_argument(std::string_view method, const Arguments& arguments, size_t index,
                                  std::string_view name) {
  const Value* value = arguments.get(index, name);
  if (value == nullptr || value->is_none()) return nullptr;
  if (value->text() == nullptr) {
    return type_error(fmt::format("\"{}\" takes a string and got {}", method, value->type_name()));
  }
  return value->text();
}

Result<int64_t> count_argument(std::string_view method, const Arguments& arguments, size_t index,
                               std::string_view name) {
  const Value* value = arguments.get(index, name);
  if (value == nullptr) return -1;
  if (!value->is_integer())
    return type_error(fmt::format("\"{}\" takes an integer and got {}", method, value->type_name()));
  return value->integer();
}

// startswith and endswith take one string or a tuple of them.
Result<Value> edge_test(std::string_view name, const Text& text, const Arguments& arguments) {
  TANDEM_TRY(arguments.only(name, 1, {}));
  if (arguments.positional.empty()) return type_error(fmt::format("\"{}\" takes one argument", name));
  const auto holds = [&](const Value& value) -> Result<bool> {
    if (value.text() == nullptr)
      return type_error(fmt::format("\"{}\" takes strings and got {}", name, value.type_name()));
    return name == "startswith" ? text.bytes.starts_with(value.text()->bytes)
                                : text.bytes.ends_with(value.text()->bytes);
  };
  const Value& argument = arguments.positional[0];
  if (argument.list() == nullptr) {
    TANDEM_ASSIGN(const bool result, holds(argument));
    return Value(result);
  }
  for (const Value& item : argument.list()->items) {
    TANDEM_ASSIGN(const bool result, holds(item));
    if (result) return Value(true);
  }
  return Value(false);
}

Result<Value> string_method(BuiltinContext& context, std::string_view name, const Text& text,
                            const Arguments& arguments) {
  TANDEM_TRY(context.budget.grow(text.bytes.size()));
  if (name == "startswith" || name == "endswith") return edge_test(name, text, arguments);
  if (name == "strip" || name == "lstrip" || name == "rstrip") {
    TANDEM_TRY(arguments.only(name, 1, {}));
    TANDEM_ASSIGN(const Text* characters, text_argument(name, arguments, 0, ""));
    return Value(strip(text, characters, name != "rstrip", name != "lstrip"));
  }
  if (name == "split" || name == "rsplit") {
    TANDEM_TRY(arguments.only(name, 2, {"sep", "maxsplit"}));
    TANDEM_ASSIGN(const Text* separator, text_argument(name, arguments, 0, "sep"));
    TANDEM_ASSIGN(const int64_t most, count_argument(name, arguments, 1, "maxsplit"));
    if (separator != nullptr && separator->bytes.empty())
      return type_error(fmt::format("\"{}\" by an empty string", name));
    if (name == "split" || most < 0) return list_of(context, split(text, separator, most));
    if (separator == nullptr) return type_error("\"rsplit\" by white space with a limit is not supported");
    return list_of(context, split_right(text, *separator, most));
  }
  if (name == "replace") {
    TANDEM_TRY(arguments.only(name, 3, {"old", "new", "count"}));
    TANDEM_ASSIGN(const Text* from, text_argument(name, arguments, 0, "old"));
    TANDEM_ASSIGN(const Text* to, text_argument(name, arguments, 1, "new"));
    TANDEM_ASSIGN(const int64_t most, count_argument(name, arguments, 2, "count"));
    if (from == nullptr || to == nullptr) return type_error("\"replace\" takes two strings");
    TANDEM_ASSIGN(Text out, replace(context, text, *from, *to, most));
    return Value(std::move(out));
  }
  if (name == "join") {
    TANDEM_TRY(arguments.only(name, 1, {}));
    if (arguments.positional.empty()) return type_error("\"join\" takes one argument");
    TANDEM_ASSIGN(const std::vector<Value> items, iterate(context, arguments.positional[0]));
    Text out;
    for (size_t i = 0; i < items.size(); ++i) {
      if (items[i].text() == nullptr) return type_error(fmt::format("\"join\" of {}", items[i].type_name()));
      TANDEM_TRY(context.budget.grow(text.bytes.size() + items[i].text()->bytes.size()));
      if (i > 0) out.append(text);
      out.append(*items[i].text());
    }
    return Value(std::move(out));
  }
  if (name == "find" || name == "rfind" || name == "count" || name == "removeprefix" ||
      name == "removesuffix") {
    TANDEM_TRY(arguments.only(name, 1, {}));
    TANDEM_ASSIGN(const Text* wanted, text_argument(name, arguments, 0, ""));
    if (wanted == nullptr) return type_error(fmt::format("\"{}\" takes a string", name));
    if (name == "removeprefix")
      return Value(
          text.slice(text.bytes.starts_with(wanted->bytes) ? wanted->bytes.size() : 0, text.bytes.size()));
    if (name == "removesuffix") {
      const bool cut = text.bytes.ends_with(wanted->bytes);
      return Value(text.slice(0, text.bytes.size() - (cut ? wanted->bytes.size() : 0)));
    }
    if (name == "count") {
      if (wanted->bytes.empty()) return Value(static_cast<int64_t>(length(text)) + 1);
      return Value(static_cast<int64_t>(split(text, wanted, -1).size()) - 1);
    }
    const size_t hit = name == "find" ? text.bytes.find(wanted->bytes) : text.bytes.rfind(wanted->bytes);
    if (hit == std::string::npos) return Value(int64_t{-1});
    return Value(static_cast<int64_t>(length(text.slice(0, hit))));
  }
  TANDEM_TRY(arguments.only(name, 0, {}));
  if (name == "upper") return Value(upper(text));
  if (name == "lower") return Value(lower(text));
  if (name == "title") return Value(title(text, false));
  if (name == "capitalize") return Value(capitalize(text));
  if (name == "splitlines") return list_of(context, split_lines(text));
  // isdigit
  bool digits = !text.bytes.empty();
  for (size_t offset = 0; digits && offset < text.bytes.size();) {
    digits = general_category(next_codepoint(text.bytes, offset)) == Category::Nd;
  }
  return Value(digits);
}

Result<Value> dict_method(BuiltinContext& context, std::string_view name, const Value& object,
                          const Arguments& arguments) {
  const auto& entries = object.map()->entries;
  if (name == "get") {
    TANDEM_TRY(arguments.only(name, 2, {}));
    if (arguments.positional.empty()) return type_error("\"get\" takes a key");
    for (const auto& [key, item] : entries) {
      if (equal(key, arguments.positional[0])) return item;
    }
    return arguments.positional.size() > 1 ? arguments.positional[1] : Value(None{});
  }
  TANDEM_TRY(arguments.only(name, 0, {}));
  TANDEM_TRY(context.budget.grow(entries.size() * 4 * sizeof(Value)));
  std::vector<Value> items;
  for (const auto& [key, item] : entries) {
    if (name == "keys") {
      items.push_back(key);
    } else if (name == "values") {
      items.push_back(item);
    } else {
      TANDEM_ASSIGN(Value pair, Value::list({key, item}, true));
      items.push_back(std::move(pair));
    }
  }
  return Value::list(std::move(items));
}

}  // namespace

bool is_method(std::string_view name) {
  return among(kStringMethods, name) || among(kDictMethods, name) || among(kListMethods, name);
}

Result<Value> call_method(BuiltinContext& context, std::string_view name, const Value& object,
                          const Arguments& arguments) {
  if (object.is_undefined()) {
    return type_error(
        fmt::format("\"{}\" is undefined, so it has no method \"{}\"", object.undefined_name(), name));
  }
  if (object.text() != nullptr && among(kStringMethods, name))
    return string_method(context, name, *object.text(), arguments);
  if (object.map() != nullptr && among(kDictMethods, name))
    return dict_method(context, name, object, arguments);
  if (object.list() != nullptr && among(kListMethods, name)) {
    TANDEM_TRY(arguments.only(name, 1, {}));
    if (arguments.positional.empty()) return type_error(fmt::format("\"{}\" takes one argument", name));
    const auto& items = object.list()->items;
    TANDEM_TRY(context.budget.spend(object.weight() + comparison_cost(object, arguments.positional[0])));
    const auto matches = [&](const Value& item) { return equal(item, arguments.positional[0]); };
    if (name == "count")
      return Value(static_cast<int64_t>(std::count_if(items.begin(), items.end(), matches)));
    const auto found = std::find_if(items.begin(), items.end(), matches);
    if (found == items.end()) return type_error("\"index\" of an item that is not in the list");
    return Value(static_cast<int64_t>(found - items.begin()));
  }
  return type_error(fmt::format("a value of type {} has no method \"{}\"", object.type_name(), name));
}

}  // namespace tandem::jinja
