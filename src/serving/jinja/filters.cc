#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <unordered_map>

#include "serving/jinja/builtins.h"
#include "serving/jinja/text_operations.h"
#include "tokenizer/unicode.h"

namespace tandem::jinja {
namespace {

using Filter = Result<Value> (*)(BuiltinContext&, const Value&, const Arguments&);

Result<bool> flag(const Arguments& arguments, size_t index, std::string_view name, bool otherwise) {
  const Value* value = arguments.get(index, name);
  return value != nullptr ? value->truthy() : otherwise;
}

Result<Value> tojson(BuiltinContext& context, const Value& value, const Arguments& arguments) {
  TANDEM_TRY(arguments.only("tojson", 4, {"ensure_ascii", "indent", "separators", "sort_keys"}));
  JsonStyle style;
  TANDEM_ASSIGN(style.ensure_ascii, flag(arguments, 0, "ensure_ascii", false));
  TANDEM_ASSIGN(style.sort_keys, flag(arguments, 3, "sort_keys", false));
  if (const Value* indent = arguments.get(1, "indent"); indent != nullptr && !indent->is_none()) {
    if (!indent->is_integer() || indent->integer() < 0 || indent->integer() > 64) {
      return type_error("\"tojson\" takes an indent of 0 to 64");
    }
    style.indent = static_cast<int>(indent->integer());
    style.item_separator = ",";
  }
  if (const Value* separators = arguments.get(2, "separators");
      separators != nullptr && !separators->is_none()) {
    const List* pair = separators->list();
    if (pair == nullptr || pair->items.size() != 2 || pair->items[0].text() == nullptr ||
        pair->items[1].text() == nullptr) {
      return type_error("\"tojson\" takes separators as a pair of strings");
    }
    style.item_separator = pair->items[0].text()->bytes;
    style.key_separator = pair->items[1].text()->bytes;
  }
  TANDEM_ASSIGN(Text text, to_json(value, style));
  TANDEM_TRY(context.budget.grow(text.bytes.size()));
  return Value(std::move(text));
}

Result<Value> length_of(BuiltinContext&, const Value& value, const Arguments& arguments) {
  TANDEM_TRY(arguments.only("length", 0, {}));
  if (value.is_undefined()) return Value(int64_t{0});
  if (value.text() != nullptr) return Value(static_cast<int64_t>(length(*value.text())));
  if (value.list() != nullptr) return Value(static_cast<int64_t>(value.list()->items.size()));
  if (value.map() != nullptr) return Value(static_cast<int64_t>(value.map()->entries.size()));
  return type_error(fmt::format("\"length\" of {}", value.type_name()));
}

Result<Value> trim(BuiltinContext& context, const Value& value, const Arguments& arguments) {
  TANDEM_TRY(arguments.only("trim", 1, {"chars"}));
  const Value* characters = arguments.get(0, "chars");
  if (characters != nullptr && characters->is_none()) characters = nullptr;
  if (characters != nullptr && characters->text() == nullptr) return type_error("\"trim\" takes a string");
  const Text text = to_text(value);
  TANDEM_TRY(context.budget.grow(text.bytes.size()));
  return Value(strip(text, characters != nullptr ? characters->text() : nullptr, true, true));
}

template <bool kLast>
Result<Value> edge(BuiltinContext& context, const Value& value, const Arguments& arguments) {
  TANDEM_TRY(arguments.only(kLast ? "last" : "first", 0, {}));
  TANDEM_ASSIGN(const std::vector<Value> items, iterate(context, value));
  if (items.empty())
    return Value(Undefined{kLast ? "the last item of nothing" : "the first item of nothing"});
  return kLast ? items.back() : items.front();
}

// An attribute as map, join and sort take it: "a.b.0".
Result<Value> attribute_of(const Value& value, const Value& path) {
  if (path.is_integer()) return subscript(value, path);
  if (path.text() == nullptr) return type_error(fmt::format("an attribute named by {}", path.type_name()));
  Value current = value;
  const Text dot{".", {}};
  for (const Text& part : split(*path.text(), &dot, -1)) {
    int64_t index = 0;
    const char* end = part.bytes.data() + part.bytes.size();
    const bool number = std::from_chars(part.bytes.data(), end, index).ptr == end && !part.bytes.empty() &&
                        part.bytes[0] != '-';
    TANDEM_ASSIGN(current, subscript(current, number ? Value(index) : Value(part)));
  }
  return current;
}

Result<Value> join(BuiltinContext& context, const Value& value, const Arguments& arguments) {
  TANDEM_TRY(arguments.only("join", 2, {"d", "attribute"}));
  TANDEM_ASSIGN(const std::vector<Value> items, iterate(context, value));
  const Value* separator = arguments.get(0, "d");
  const Value* attribute = arguments.get(1, "attribute");
  const Text between = separator != nullptr ? to_text(*separator) : Text{};
  Text out;
  for (size_t i = 0; i < items.size(); ++i) {
    Value item = items[i];
    if (attribute != nullptr && !attribute->is_none()) {
      TANDEM_ASSIGN(item, attribute_of(items[i], *attribute));
    }
    const Text text = to_text(item);
    TANDEM_TRY(context.budget.grow(between.bytes.size() + text.bytes.size()));
    if (i > 0) out.append(between);
    out.append(text);
  }
  return Value(std::move(out));
}

template <Text (*kOperation)(const Text&)>
Result<Value> on_text(BuiltinContext& context, const Value& value, const Arguments& arguments) {
  TANDEM_TRY(arguments.only("the filter", 0, {}));
  const Text text = to_text(value);
  TANDEM_TRY(context.budget.grow(text.bytes.size()));
  return Value(kOperation(text));
}
Text same(const Text& text) {
  return text;
}
Text filter_title(const Text& text) {
  return title(text, true);
}

Result<Value> replace_filter(BuiltinContext& context, const Value& value, const Arguments& arguments) {
  TANDEM_TRY(arguments.only("replace", 3, {"old", "new", "count"}));
  const Value* from = arguments.get(0, "old");
  const Value* to = arguments.get(1, "new");
  const Value* count = arguments.get(2, "count");
  if (from == nullptr || to == nullptr) return type_error("\"replace\" takes two strings");
  if (count != nullptr && !count->is_none() && !count->is_integer())
    return type_error("\"replace\" takes an integer as count");
  TANDEM_ASSIGN(Text out, replace(context, to_text(value), to_text(*from), to_text(*to),
                                  count != nullptr && count->is_integer() ? count->integer() : -1));
  return Value(std::move(out));
}

Result<Value> default_value(BuiltinContext&, const Value& value, const Arguments& arguments) {
  TANDEM_TRY(arguments.only("default", 2, {"default_value", "boolean"}));
  TANDEM_ASSIGN(const bool falsy, flag(arguments, 1, "boolean", false));
  if (!value.is_undefined() && !(falsy && !value.truthy())) return value;
  const Value* other = arguments.get(0, "default_value");
  return other != nullptr ? *other : Value("");
}

Result<Value> to_list(BuiltinContext& context, const Value& value, const Arguments& arguments) {
  TANDEM_TRY(arguments.only("list", 0, {}));
  TANDEM_ASSIGN(std::vector<Value> items, iterate(context, value));
  return Value::list(std::move(items));
}

template <bool kInteger>
Result<Value> to_number(BuiltinContext&, const Value& value, const Arguments& arguments) {
  TANDEM_TRY(arguments.only(kInteger ? "int" : "float", 1, {"default"}));
  const Value* other = arguments.get(0, "default");
  Value otherwise = other != nullptr ? *other : kInteger ? Value(int64_t{0}) : Value(0.0);
  double number = 0;
  if (value.is_number()) {
    if (kInteger && !value.is_float()) return Value(value.integer());
    number = value.number();
  } else if (value.text() != nullptr) {
    const std::string text = strip(*value.text(), nullptr, true, true).bytes;
    const size_t sign = text.starts_with('+') ? 1 : 0;
    const char* begin = text.data() + sign;
    const char* end = text.data() + text.size();
    int64_t integer = 0;
    const auto whole = std::from_chars(begin, end, integer);
    if (kInteger && whole.ec == std::errc() && whole.ptr == end) return Value(integer);
    const auto read = std::from_chars(begin, end, number);
    if (read.ec != std::errc() || read.ptr != end) return otherwise;
  } else {
    return otherwise;
  }
  if (!kInteger) return Value(number);
  if (!(std::fabs(number) < 9.2e18)) return otherwise;
  return Value(static_cast<int64_t>(number));
}

Result<Value> absolute(BuiltinContext&, const Value& value, const Arguments& arguments) {
  TANDEM_TRY(arguments.only("abs", 0, {}));
  if (value.is_float()) return Value(std::fabs(value.number()));
  if (!value.is_number() || value.integer() == INT64_MIN)
    return type_error(fmt::format("\"abs\" of {}", value.type_name()));
  return Value(std::abs(value.integer()));
}

Result<Value> items_of(BuiltinContext& context, const Value& value, const Arguments& arguments) {
  if (value.is_undefined()) return Value::list({});
  if (value.map() == nullptr) return type_error(fmt::format("\"items\" of {}", value.type_name()));
  return call_method(context, "items", value, arguments);
}

// Without regard to case, as sort, unique and dictsort compare unless told otherwise.
Value sort_key(const Value& value, bool case_sensitive) {
  return !case_sensitive && value.text() != nullptr ? Value(lower(*value.text())) : value;
}

Result<Value> sorted(BuiltinContext& context, std::vector<std::pair<Value, Value>> keyed, bool reverse) {
  // log2 of the longest list that the budget lets through.
  TANDEM_TRY(context.budget.spend(keyed.size() * 20));
  Status failed;
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) {
    auto result = reverse ? less(b.first, a.first) : less(a.first, b.first);
    if (!result) {
      failed = std::unexpected(result.error());
      return false;
    }
    return *result;
  });
  TANDEM_TRY(failed);
  std::vector<Value> items;
  items.reserve(keyed.size());
  for (auto& [key, item] : keyed) items.push_back(std::move(item));
  return Value::list(std::move(items));
}

Result<Value> dictsort(BuiltinContext& context, const Value& value, const Arguments& arguments) {
  TANDEM_TRY(arguments.only("dictsort", 1, {"case_sensitive"}));
  if (value.map() == nullptr) return type_error(fmt::format("\"dictsort\" of {}", value.type_name()));
  TANDEM_ASSIGN(const bool case_sensitive, flag(arguments, 0, "case_sensitive", false));
  std::vector<std::pair<Value, Value>> keyed;
  for (const auto& [key, item] : value.map()->entries) {
    TANDEM_ASSIGN(Value pair, Value::list({key, item}, true));
    keyed.emplace_back(sort_key(key, case_sensitive), std::move(pair));
  }
  return sorted(context, std::move(keyed), false);
}

Result<Value> sort(BuiltinContext& context, const Value& value, const Arguments& arguments) {
  TANDEM_TRY(arguments.only("sort", 3, {"reverse", "case_sensitive", "attribute"}));
  TANDEM_ASSIGN(const bool reverse, flag(arguments, 0, "reverse", false));
  TANDEM_ASSIGN(const bool case_sensitive, flag(arguments, 1, "case_sensitive", false));
  const Value* attribute = arguments.get(2, "attribute");
  TANDEM_ASSIGN(const std::vector<Value> items, iterate(context, value));
  std::vector<std::pair<Value, Value>> keyed;
  for (const Value& item : items) {
    Value key = item;
    if (attribute != nullptr) {
      TANDEM_ASSIGN(key, attribute_of(item, *attribute));
    }
    keyed.emplace_back(sort_key(key, case_sensitive), item);
  }
  return sorted(context, std::move(keyed), reverse);
}

Result<Value> unique(BuiltinContext& context, const Value& value, const Arguments& arguments) {
  TANDEM_TRY(arguments.only("unique", 1, {"case_sensitive"}));
  TANDEM_ASSIGN(const bool case_sensitive, flag(arguments, 0, "case_sensitive", false));
  TANDEM_ASSIGN(const std::vector<Value> items, iterate(context, value));
  std::vector<Value> keys;
  std::vector<Value> kept;
  for (const Value& item : items) {
    TANDEM_TRY(context.budget.spend(keys.size() + 1));
    if (item.list() != nullptr || item.map() != nullptr)
      return type_error(fmt::format("\"unique\" of {}", item.type_name()));
    Value key = sort_key(item, case_sensitive);
    if (std::any_of(keys.begin(), keys.end(), [&](const Value& held) { return equal(held, key); })) continue;
    keys.push_back(std::move(key));
    kept.push_back(item);
  }
  return Value::list(std::move(kept));
}

Result<Value> reverse(BuiltinContext& context, const Value& value, const Arguments& arguments) {
  TANDEM_TRY(arguments.only("reverse", 0, {}));
  const Value none = None{};
  if (value.text() != nullptr) return slice(context, value, none, none, Value(int64_t{-1}));
  TANDEM_ASSIGN(std::vector<Value> items, iterate(context, value));
  std::reverse(items.begin(), items.end());
  return Value::list(std::move(items));
}

Result<Value> map(BuiltinContext& context, const Value& value, const Arguments& arguments) {
  TANDEM_ASSIGN(const std::vector<Value> items, iterate(context, value));
  std::vector<Value> out;
  const Value* attribute = arguments.get(SIZE_MAX, "attribute");
  if (attribute != nullptr) {
    TANDEM_TRY(arguments.only("map", 0, {"attribute", "default"}));
    const Value* otherwise = arguments.get(SIZE_MAX, "default");
    for (const Value& item : items) {
      TANDEM_ASSIGN(Value result, attribute_of(item, *attribute));
      if (result.is_undefined() && otherwise != nullptr) result = *otherwise;
      out.push_back(std::move(result));
    }
    return Value::list(std::move(out));
  }
  if (arguments.positional.empty() || arguments.positional[0].text() == nullptr)
    return type_error("\"map\" takes a filter's name");
  Arguments inner{{arguments.positional.begin() + 1, arguments.positional.end()}, arguments.named};
  for (const Value& item : items) {
    TANDEM_TRY(context.budget.spend(1));
    TANDEM_ASSIGN(Value result, apply_filter(context, arguments.positional[0].text()->bytes, item, inner));
    out.push_back(std::move(result));
  }
  return Value::list(std::move(out));
}

// select, reject and their forms by attribute.
template <bool kKeep, bool kAttribute>
Result<Value> select(BuiltinContext& context, const Value& value, const Arguments& arguments) {
  TANDEM_TRY(arguments.only("select", SIZE_MAX, {}));
  TANDEM_ASSIGN(const std::vector<Value> items, iterate(context, value));
  const auto& given = arguments.positional;
  const size_t place = kAttribute ? 1 : 0;
  if (given.size() < place) return type_error("\"selectattr\" takes an attribute's name");
  const bool tested = given.size() > place;
  if (tested && given[place].text() == nullptr) return type_error("\"select\" takes a test's name");
  Arguments inner;
  if (tested) inner.positional.assign(given.begin() + place + 1, given.end());
  std::vector<Value> out;
  for (const Value& item : items) {
    TANDEM_TRY(context.budget.spend(1));
    Value attribute;
    if constexpr (kAttribute) {
      TANDEM_ASSIGN(attribute, attribute_of(item, given[0]));
    }
    const Value& subject = kAttribute ? attribute : item;
    bool holds = subject.truthy();
    if (tested) {
      TANDEM_ASSIGN(holds, apply_test(context, given[place].text()->bytes, subject, inner));
    }
    if (holds == kKeep) out.push_back(item);
  }
  return Value::list(std::move(out));
}

template <bool kMost>
Result<Value> extreme(BuiltinContext& context, const Value& value, const Arguments& arguments) {
  TANDEM_TRY(arguments.only(kMost ? "max" : "min", 0, {}));
  TANDEM_ASSIGN(const std::vector<Value> items, iterate(context, value));
  if (items.empty()) return Value(Undefined{"an extreme of nothing"});
  const Value* best = &items[0];
  for (const Value& item : items) {
    const Value a = sort_key(kMost ? *best : item, false);
    const Value b = sort_key(kMost ? item : *best, false);
    TANDEM_ASSIGN(const bool better, less(a, b));
    if (better) best = &item;
  }
  return *best;
}

Result<Value> indent(BuiltinContext& context, const Value& value, const Arguments& arguments) {
  TANDEM_TRY(arguments.only("indent", 3, {"width", "first", "blank"}));
  const Value* width = arguments.get(0, "width");
  Text space{"    ", {}};
  if (width != nullptr && width->text() != nullptr) {
    space = *width->text();
  } else if (width != nullptr) {
    if (!width->is_integer() || width->integer() < 0 || width->integer() > 256)
      return type_error("\"indent\" takes a width of 0 to 256");
    space.bytes.assign(static_cast<size_t>(width->integer()), ' ');
  }
  TANDEM_ASSIGN(const bool first, flag(arguments, 1, "first", false));
  TANDEM_ASSIGN(const bool blank, flag(arguments, 2, "blank", false));
  Text source = to_text(value);
  source.append("\n");  // as jinja2 does, so that a last empty line counts
  const std::vector<Text> lines = split_lines(source);
  Text out;
  for (size_t i = 0; i < lines.size(); ++i) {
    TANDEM_TRY(context.budget.grow(lines[i].bytes.size() + space.bytes.size()));
    if (i > 0) out.append("\n");
    const bool wanted = i == 0 ? first : blank || !lines[i].bytes.empty();
    if (wanted) out.append(space);
    out.append(lines[i]);
  }
  return Value(std::move(out));
}

const std::unordered_map<std::string_view, Filter>& filters() {
  static const std::unordered_map<std::string_view, Filter> table = {
      {"tojson", tojson},
      {"length", length_of},
      {"count", length_of},
      {"trim", trim},
      {"first", edge<false>},
      {"last", edge<true>},
      {"join", join},
      {"upper", on_text<upper>},
      {"lower", on_text<lower>},
      {"capitalize", on_text<capitalize>},
      {"title", on_text<filter_title>},
      {"string", on_text<same>},
      // Without autoescape `safe` changes nothing that is written out.
      {"safe", on_text<same>},
      {"replace", replace_filter},
      {"default", default_value},
      {"d", default_value},
      {"list", to_list},
      {"int", to_number<true>},
      {"float", to_number<false>},
      {"abs", absolute},
      {"items", items_of},
      {"dictsort", dictsort},
      {"sort", sort},
      {"unique", unique},
      {"reverse", reverse},
      {"map", map},
      {"select", select<true, false>},
      {"reject", select<false, false>},
      {"selectattr", select<true, true>},
      {"rejectattr", select<false, true>},
      {"min", extreme<false>},
      {"max", extreme<true>},
      {"indent", indent},
  };
  return table;
}

}  // namespace

bool is_filter(std::string_view name) {
  return filters().contains(name);
}

Result<Value> apply_filter(BuiltinContext& context, std::string_view name, const Value& value,
                           const Arguments& arguments) {
  const auto found = filters().find(name);
  if (found == filters().end())
    return make_error(ErrorCode::unsupported, fmt::format("the filter \"{}\" is not supported", name));
  // Most filters write the value out or walk through it once.
  TANDEM_TRY(context.budget.spend(value.weight()));
  return found->second(context, value, arguments);
}

}  // namespace tandem::jinja
