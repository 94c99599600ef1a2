// The values of `format` in JSON schemas that OpenAI's structured outputs know, as regular expressions. Pure.
#pragma once

#include <optional>
#include <string_view>

namespace tandem {

// The whole text of a string of that format; nothing for an unknown one. Calendars are not looked at: a month
// has up to 31 days.
std::optional<std::string_view> json_format_pattern(std::string_view format);
// "date, date-time, ...": for messages.
std::string_view json_format_names();

}  // namespace tandem
