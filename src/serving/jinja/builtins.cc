#include "serving/jinja/builtins.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>

#include "tokenizer/unicode.h"

namespace tandem::jinja {

Status Budget::spend(uint64_t count) {
  if (count > steps) {
    steps = 0;
    return make_error(ErrorCode::resource_exhausted,
                      "rendering takes too many steps; shorten the conversation");
  }
  steps -= count;
  return {};
}

Status Budget::grow(uint64_t count) {
  if (count > bytes) {
    bytes = 0;
    return make_error(ErrorCode::resource_exhausted,
                      "rendering takes too much memory; shorten the conversation");
  }
  bytes -= count;
  // Copying is work too.
  return spend(count / 256);
}

const Value* Arguments::get(size_t index, std::string_view name) const {
  if (index < positional.size()) return &positional[index];
  for (const auto& [held, value] : named) {
    if (held == name) return &value;
  }
  return nullptr;
}

Status Arguments::only(std::string_view what, size_t most,
                       std::initializer_list<std::string_view> names) const {
  if (positional.size() > most)
    return type_error(fmt::format("\"{}\" takes at most {} arguments", what, most));
  for (const auto& [name, value] : named) {
    if (std::find(names.begin(), names.end(), name) == names.end()) {
      return type_error(fmt::format("\"{}\" with the argument \"{}\" is not supported", what, name));
    }
  }
  return {};
}

std::unexpected<Error> type_error(std::string message) {
  return make_error(ErrorCode::invalid_argument, std::move(message));
}

Result<std::vector<Value>> iterate(BuiltinContext& context, const Value& value) {
  std::vector<Value> items;
  if (value.is_undefined()) return items;
  if (value.list() != nullptr) {
    TANDEM_TRY(context.budget.grow(value.list()->items.size() * sizeof(Value)));
    return value.list()->items;
  }
  if (value.map() != nullptr) {
    TANDEM_TRY(context.budget.grow(value.map()->entries.size() * sizeof(Value)));
    for (const auto& [key, item] : value.map()->entries) items.push_back(key);
    return items;
  }
  if (value.text() != nullptr) {
    const Text& text = *value.text();
    TANDEM_TRY(context.budget.grow(text.bytes.size() * (sizeof(Value) + sizeof(Text))));
    for (size_t offset = 0; offset < text.bytes.size();) {
      const size_t begin = offset;
      next_codepoint(text.bytes, offset);
      items.emplace_back(text.slice(begin, offset));
    }
    return items;
  }
  return type_error(fmt::format("a value of type {} is not iterable", value.type_name()));
}

Result<bool> contains(BuiltinContext& context, const Value& container, const Value& item) {
  TANDEM_TRY(context.budget.spend(container.weight() / 8 + comparison_cost(container, item)));
  if (container.is_undefined()) return false;
  if (container.text() != nullptr) {
    if (item.text() == nullptr)
      return type_error(fmt::format("\"in\" a string needs a string, not {}", item.type_name()));
    return container.text()->bytes.find(item.text()->bytes) != std::string::npos;
  }
  if (container.list() != nullptr) {
    const auto& items = container.list()->items;
    return std::any_of(items.begin(), items.end(), [&](const Value& held) { return equal(held, item); });
  }
  if (container.map() != nullptr) {
    const auto& entries = container.map()->entries;
    return std::any_of(entries.begin(), entries.end(),
                       [&](const auto& entry) { return equal(entry.first, item); });
  }
  return type_error(fmt::format("\"in\" a value of type {}", container.type_name()));
}

Value member(const Value& value, std::string_view name) {
  if (const Value* found = value.find(name)) return *found;
  if (value.space() != nullptr) {
    for (const auto& [held, item] : value.space()->entries) {
      if (held == name) return item;
    }
  }
  return Undefined{std::string(name)};
}

namespace {

// The bytes of character `index` of a string, or nothing.
bool character_at(const std::string& text, int64_t index, size_t& begin, size_t& end) {
  if (index >= 0) {
    size_t offset = 0;
    for (int64_t i = 0; offset < text.size(); ++i) {
      begin = offset;
      next_codepoint(text, offset);
      end = offset;
      if (i == index) return true;
    }
    return false;
  }
  size_t offset = text.size();
  for (int64_t i = -1; offset > 0; --i) {
    end = offset;
    previous_codepoint(text, offset);
    begin = offset;
    if (i == index) return true;
  }
  return false;
}

}  // namespace

Result<Value> subscript(const Value& value, const Value& key) {
  if (value.is_undefined()) {
    return type_error(fmt::format("\"{}\" is undefined, so it has no members", value.undefined_name()));
  }
  const bool whole = key.is_boolean() || key.is_integer();
  if (value.list() != nullptr && whole) {
    const auto& items = value.list()->items;
    const auto count = static_cast<int64_t>(items.size());
    const int64_t index = key.integer() < 0 ? key.integer() + count : key.integer();
    if (index < 0 || index >= count) return Value(Undefined{fmt::format("item {}", key.integer())});
    return items[static_cast<size_t>(index)];
  }
  if (value.text() != nullptr && whole) {
    size_t begin = 0;
    size_t end = 0;
    if (!character_at(value.text()->bytes, key.integer(), begin, end)) {
      return Value(Undefined{fmt::format("character {}", key.integer())});
    }
    return Value(value.text()->slice(begin, end));
  }
  if (value.map() != nullptr) {
    for (const auto& [held, item] : value.map()->entries) {
      if (equal(held, key)) return item;
    }
  }
  if (key.text() != nullptr) return member(value, key.text()->bytes);
  return Value(Undefined{fmt::format("a member by {}", key.type_name())});
}

Result<Value> slice(BuiltinContext& context, const Value& value, const Value& begin, const Value& end,
                    const Value& step) {
  if (value.list() == nullptr && value.text() == nullptr) {
    return type_error(fmt::format("a slice of a value of type {}", value.type_name()));
  }
  for (const Value* bound : {&begin, &end, &step}) {
    if (!bound->is_none() && !bound->is_integer() && !bound->is_boolean()) {
      return type_error(fmt::format("a slice with a bound of type {}", bound->type_name()));
    }
  }
  TANDEM_ASSIGN(const std::vector<Value> items, iterate(context, value));
  const auto count = static_cast<int64_t>(items.size());
  const int64_t stride = step.is_none() ? 1 : step.integer();
  if (stride == 0) return type_error("a slice with step 0");
  const auto clamp = [&](const Value& bound, int64_t when_none) {
    if (bound.is_none()) return when_none;
    int64_t index = bound.integer();
    if (index < 0) index = index < -count ? -1 : index + count;
    return std::clamp<int64_t>(index, stride > 0 ? 0 : -1, stride > 0 ? count : count - 1);
  };
  const int64_t from = clamp(begin, stride > 0 ? 0 : count - 1);
  const int64_t to = clamp(end, stride > 0 ? count : -1);
  std::vector<Value> picked;
  for (int64_t i = from; stride > 0 ? i < to : i > to;) {
    picked.push_back(items[static_cast<size_t>(i)]);
    if (stride > 0 ? stride >= to - i : stride <= to - i) break;  // also where `i + stride` would overflow
    i += stride;
  }
  if (value.list() != nullptr) return Value::list(std::move(picked), value.list()->tuple);
  Text text;
  for (const Value& character : picked) text.append(*character.text());
  return Value(std::move(text));
}

bool is_function(std::string_view name) {
  return name == "range" || name == "namespace" || name == "dict" || name == "raise_exception" ||
         name == "strftime_now";
}

namespace {

// jinja2's sandbox has the same limit.
constexpr int64_t kMaxRange = 100'000;

Result<Value> make_range(BuiltinContext& context, const Arguments& arguments) {
  TANDEM_TRY(arguments.only("range", 3, {}));
  const auto& given = arguments.positional;
  if (given.empty()) return type_error("\"range\" takes 1 to 3 arguments");
  for (const Value& value : given) {
    if (!value.is_integer() && !value.is_boolean())
      return type_error(fmt::format("\"range\" of {}", value.type_name()));
  }
  const int64_t begin = given.size() > 1 ? given[0].integer() : 0;
  const int64_t end = given.size() > 1 ? given[1].integer() : given[0].integer();
  const int64_t step = given.size() > 2 ? given[2].integer() : 1;
  if (step == 0) return type_error("\"range\" with step 0");
  std::vector<Value> items;
  for (int64_t i = begin; step > 0 ? i < end : i > end;) {
    if (static_cast<int64_t>(items.size()) >= kMaxRange)
      return type_error(fmt::format("\"range\" of more than {} numbers", kMaxRange));
    items.emplace_back(i);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  TANDEM_TRY(context.budget.grow(items.size() * sizeof(Value)));
  return Value::list(std::move(items));
}

Result<Value> format_time(BuiltinContext& context, const Arguments& arguments) {
  TANDEM_TRY(arguments.only("strftime_now", 1, {"format"}));
  const Value* format = arguments.get(0, "format");
  if (format == nullptr || format->text() == nullptr) return type_error("\"strftime_now\" takes a string");
  const std::string& pattern = format->text()->bytes;
  if (pattern.find("%f") != std::string::npos) return type_error("\"strftime_now\" with %f is not supported");
  const std::time_t seconds = std::chrono::system_clock::to_time_t(context.now);
  std::tm local{};
  localtime_r(&seconds, &local);
  char buffer[1024];
  // A byte in front tells an empty result from one that does not fit.
  const size_t length = std::strftime(buffer, sizeof buffer, ("x" + pattern).c_str(), &local);
  if (length == 0) return type_error("\"strftime_now\" makes more than 1023 bytes");
  std::string text(buffer + 1, length - 1);
  if (find_invalid_utf8(text) != std::string_view::npos) return type_error("\"strftime_now\" makes no UTF-8");
  return Value(Text::derived(std::move(text), *format->text()));
}

}  // namespace

Result<Value> call_function(BuiltinContext& context, std::string_view name, const Arguments& arguments) {
  if (name == "range") return make_range(context, arguments);
  if (name == "strftime_now") return format_time(context, arguments);
  if (name == "raise_exception") {
    const Value* message = arguments.get(0, "message");
    std::string text = message != nullptr ? to_text(*message).bytes : std::string();
    std::replace(text.begin(), text.end(), '\n', ' ');
    return type_error(fmt::format("the template says: {}", text));
  }
  std::vector<std::pair<std::string, Value>> entries;
  if (arguments.positional.size() > 1)
    return type_error(fmt::format("\"{}\" takes one dict and named arguments", name));
  if (!arguments.positional.empty()) {
    if (arguments.positional[0].map() == nullptr)
      return type_error(fmt::format("\"{}\" takes a dict and named arguments", name));
    for (const auto& [key, value] : arguments.positional[0].map()->entries) {
      if (key.text() == nullptr)
        return type_error(fmt::format("\"{}\" takes a dict with strings as keys", name));
      entries.emplace_back(key.text()->bytes, value);
    }
  }
  for (const auto& [key, value] : arguments.named) {
    std::erase_if(entries, [&](const auto& entry) { return entry.first == key; });
    entries.emplace_back(key, value);
  }
  if (name == "namespace") {
    auto space = std::make_shared<Namespace>();
    for (const auto& [key, value] : entries) {
      if (value.space() != nullptr) return type_error("a namespace in a namespace is not supported");
    }
    space->entries = std::move(entries);
    return Value(std::move(space));
  }
  std::vector<std::pair<Value, Value>> items;
  items.reserve(entries.size());
  for (auto& [key, value] : entries) items.emplace_back(Value(std::string_view(key)), std::move(value));
  return Value::map(std::move(items));
}

}  // namespace tandem::jinja
