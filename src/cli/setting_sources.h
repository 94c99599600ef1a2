// Where settings come from, and which goes before which: flag > environment > what vLLM's JSON says
// (--additional-config, --compilation-config) > file > default. One thread.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "cli/settings.h"

namespace tandem {

struct SettingSources {
  std::string command;                                     // "serve", "ffn", ...
  std::vector<std::pair<std::string, std::string>> flags;  // key and text, as written, in order
  std::function<bool(const std::string& key)>
      takes;  // keys that the command reads from flags and environment
  std::function<const char*(const char* name)> environment;  // of a variable; null: not set
};

// Fills `settings`, which hold the command's defaults, and validates them. Returns lines for the log: what
// was translated, and what is deprecated. An error names where the value came from, key, value and what would
// do.
Result<std::vector<std::string>> apply_sources(Settings& settings, const SettingSources& sources);

}  // namespace tandem
