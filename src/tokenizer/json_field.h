// A JSON value that knows the file and the field it came from, so that every error can name both. Only for
// .cc files.
#pragma once

#include <fmt/format.h>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace tandem {

class JsonField {
 public:
  JsonField(const nlohmann::json& value, const std::string& file, std::string name)
      : value_(&value), file_(&file), name_(std::move(name)) {}

  const nlohmann::json& value() const { return *value_; }
  const std::string& name() const { return name_; }
  bool is_null() const { return value_->is_null(); }

  std::unexpected<Error> bad(std::string_view what) const {
    return make_error(ErrorCode::data_loss, fmt::format("{}: {}: {}", *file_, label(), what));
  }
  std::unexpected<Error> refuse(std::string_view what) const {
    return make_error(ErrorCode::unsupported, fmt::format("{}: {}: {}", *file_, label(), what));
  }
  // Puts file and field before the message of a lower layer.
  std::unexpected<Error> wrap(const Error& error) const {
    return make_error(error.code, fmt::format("{}: {}: {}", *file_, label(), error.message));
  }

  // A member, null when it is absent.
  JsonField at(std::string_view key) const {
    static const nlohmann::json kNull;
    const auto found = value_->is_object() ? value_->find(key) : value_->end();
    const bool present = value_->is_object() && found != value_->end();
    return {present ? *found : kNull, *file_,
            name_.empty() ? std::string(key) : fmt::format("{}.{}", name_, key)};
  }
  JsonField element(size_t index) const {
    return {(*value_)[index], *file_, fmt::format("{}[{}]", name_, index)};
  }

  Status object() const { return value_->is_object() ? Status{} : bad(wrong("an object")); }
  Status array() const { return value_->is_array() ? Status{} : bad(wrong("an array")); }
  Result<std::string> string() const {
    if (!value_->is_string()) return bad(wrong("a string"));
    return value_->get<std::string>();
  }
  Result<bool> boolean(std::optional<bool> when_null = std::nullopt) const {
    if (is_null() && when_null) return *when_null;
    if (!value_->is_boolean()) return bad(wrong("true or false"));
    return value_->get<bool>();
  }
  Result<int64_t> integer(int64_t least, int64_t most) const {
    if (!value_->is_number_integer() && !value_->is_number_unsigned()) return bad(wrong("an integer"));
    if (value_->is_number_unsigned() && value_->get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) {
      return bad(fmt::format("{} is not in [{}, {}]", value_->get<uint64_t>(), least, most));
    }
    const auto number = value_->get<int64_t>();
    if (number < least || number > most)
      return bad(fmt::format("{} is not in [{}, {}]", number, least, most));
    return number;
  }

 private:
  std::string label() const { return name_.empty() ? "the document" : name_; }
  std::string wrong(std::string_view wanted) const {
    return is_null() ? fmt::format("missing, must be {}", wanted)
                     : fmt::format("is {} and must be {}", value_->type_name(), wanted);
  }

  const nlohmann::json* value_;
  const std::string* file_;
  std::string name_;
};

}  // namespace tandem
