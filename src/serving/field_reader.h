// FieldReader: takes the fields of one JSON object by name and type, and remembers the first thing that is
// wrong, by name. What nobody asked for is refused in finish(): a field that is silently ignored would change
// what the client gets. `null` means absent. One thread; the object outlives the reader.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "serving/api_error.h"

namespace tandem {

class FieldReader {
 public:
  // `prefix` stands before each name in messages, such as "stream_options.".
  explicit FieldReader(const nlohmann::json& object, std::string prefix = "");

  // The value, or nullptr when it is absent or null. Makes the name known.
  const nlohmann::json* take(std::string_view name);
  std::optional<bool> boolean(std::string_view name);
  std::optional<int64_t> integer(std::string_view name, int64_t low, int64_t high);
  std::optional<double> number(std::string_view name, double low, double high);
  std::optional<std::string> text(std::string_view name);

  // Known, checked by nobody, without effect on the answer.
  void accept(std::initializer_list<std::string_view> names);
  // Known and not supported: an error that names it unless it is absent, null, false, [] or {}.
  void refuse(std::string_view name, std::string_view what_would_do);
  // Known; only this value (as JSON text, such as "false" or "{\"type\":\"text\"}") is supported.
  void only(std::string_view name, std::initializer_list<std::string_view> allowed,
            std::string_view what_would_do);

  void fail(std::string_view name, std::string message);
  // Refuses every field that was not made known. True when nothing was wrong.
  bool finish();
  bool ok() const { return !error_.has_value(); }
  // Only when not ok().
  ApiError take_error() { return std::move(*error_); }  // NOLINT(bugprone-unchecked-optional-access)

 private:
  const nlohmann::json& object_;
  std::string prefix_;
  std::set<std::string, std::less<>> known_;
  std::optional<ApiError> error_;
};

// Ends `inner`, the reader of what stands under `field`, and hands its error on.
void fail_with(FieldReader& fields, std::string_view field, FieldReader& inner);

// The value as a message shows it: its JSON, cut to a line.
std::string shown(const nlohmann::json& value);
// A float as people write it: 0.7, where its exact value has 0.699999988079071.
double as_written(float value);
// An integer that fits 64 bits, given as one (1.0, "1" and true are none).
std::optional<int64_t> as_integer(const nlohmann::json& value);

}  // namespace tandem
