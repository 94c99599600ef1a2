#include "serving/field_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>

namespace tandem {

using nlohmann::json;

namespace {
constexpr size_t kShownLength = 80;  // a message is one line
}

std::string shown(const json& value) {
  std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
  if (text.size() <= kShownLength) return text;
  size_t end = kShownLength;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;  // not inside a character
  return text.substr(0, end) + "...";
}

double as_written(float value) {
  return std::strtod(fmt::format("{}", value).c_str(), nullptr);
}

std::optional<int64_t> as_integer(const json& value) {
  if (value.is_number_unsigned()) {
    const auto number = value.get<uint64_t>();
    return number <= INT64_MAX ? std::optional<int64_t>(static_cast<int64_t>(number)) : std::nullopt;
  }
  return value.is_number_integer() ? std::optional<int64_t>(value.get<int64_t>()) : std::nullopt;
}

FieldReader::FieldReader(const json& object, std::string prefix)
    : object_(object), prefix_(std::move(prefix)) {}

const json* FieldReader::take(std::string_view name) {
  known_.emplace(name);
  const auto found = object_.find(name);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

void FieldReader::fail(std::string_view name, std::string message) {
  if (error_) return;
  error_ = ApiError{.status = 400, .message = std::move(message), .param = prefix_ + std::string(name)};
}

std::optional<bool> FieldReader::boolean(std::string_view name) {
  const json* value = take(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_boolean()) return value->get<bool>();
  fail(name, fmt::format("{}{} is {}; it must be true or false", prefix_, name, shown(*value)));
  return std::nullopt;
}

std::optional<int64_t> FieldReader::integer(std::string_view name, int64_t low, int64_t high) {
  const json* value = take(name);
  if (value == nullptr) return std::nullopt;
  const auto number = as_integer(*value);
  if (number && *number >= low && *number <= high) return number;
  fail(name,
       fmt::format("{}{} is {}; it must be an integer in {}..{}", prefix_, name, shown(*value), low, high));
  return std::nullopt;
}

std::optional<double> FieldReader::number(std::string_view name, double low, double high) {
  const json* value = take(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_number()) {
    const double number = value->get<double>();
    if (number >= low && number <= high) return number;
  }
  fail(name,
       fmt::format("{}{} is {}; it must be a number in {}..{}", prefix_, name, shown(*value), low, high));
  return std::nullopt;
}

std::optional<std::string> FieldReader::text(std::string_view name) {
  const json* value = take(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_string()) return value->get<std::string>();
  fail(name, fmt::format("{}{} is {}; it must be a string", prefix_, name, shown(*value)));
  return std::nullopt;
}

void FieldReader::accept(std::initializer_list<std::string_view> names) {
  for (const std::string_view name : names) known_.emplace(name);
}

void FieldReader::refuse(std::string_view name, std::string_view what_would_do) {
  const json* value = take(name);
  if (value == nullptr || *value == json(false)) return;
  if (value->is_structured() && value->empty()) return;
  fail(name, fmt::format("{}{} is not supported: {}", prefix_, name, what_would_do));
}

void FieldReader::only(std::string_view name, std::initializer_list<std::string_view> allowed,
                       std::string_view what_would_do) {
  const json* value = take(name);
  if (value == nullptr) return;
  const bool found = std::any_of(allowed.begin(), allowed.end(), [&](std::string_view text) {
    return *value == json::parse(text, nullptr, false);
  });
  if (!found) fail(name, fmt::format("{}{} is {}: {}", prefix_, name, shown(*value), what_would_do));
}

void fail_with(FieldReader& fields, std::string_view field, FieldReader& inner) {
  if (!inner.finish()) fields.fail(field, inner.take_error().message);
}

bool FieldReader::finish() {
  if (error_) return false;
  for (const auto& [name, value] : object_.items()) {
    if (known_.contains(name)) continue;
    std::string known;
    for (const std::string& each : known_) known += (known.empty() ? "" : ", ") + each;
    fail(name, fmt::format("{}{} is not a known field: remove it; known are {}", prefix_, shown(json(name)),
                           known));
    return false;
  }
  return true;
}

}  // namespace tandem
