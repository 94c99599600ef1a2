// Log lines on standard error, one line an event. Any thread. The message is complete when it is passed:
// callers format.
#pragma once

#include <string_view>

namespace tandem {

enum class LogLevel { debug, info, warning, error };

// Messages below `level` are dropped; the default is info, or TANDEM_LOG (debug, info, warning, error).
void set_log_level(LogLevel level);
// A word in front of each line, such as "ffn0" or "attention0".
void set_log_name(std::string_view name);

void log_debug(std::string_view message);
void log_info(std::string_view message);
void log_warning(std::string_view message);
void log_error(std::string_view message);

}  // namespace tandem
