// SettingsReload: the settings of a running process, read again: the file anew, and over it the flags and the
// environment that the process was started with. Some can be taken without a restart; a change of any other
// is refused by name, and then none is taken. Values; one thread.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "cli/settings.h"

namespace tandem {

// Keys that a running process takes. Those of HTTP mean nothing to a process that serves none.
std::span<const char* const> reloadable_settings();

void apply_log_level(const std::string& level);

class SettingsReload {
 public:
  using Read = std::function<Result<Settings>()>;
  using Takes = std::function<bool(const std::string& key)>;
  // `current`: as they were read, before the process settled on what they leave open. `takes`: keys that the
  // command has a use for; others may change as they like.
  SettingsReload(const Settings& current, Read read, Takes takes);

  struct Change {
    Settings settings;
    std::vector<std::string> what;  // "serving.drain_s 10, now 20"; of keys that are secret the name alone
  };
  // What has changed since the last `keep`. Errors: those of the sources, and a setting that needs a restart.
  Result<Change> read() const;
  // They are in force: the next `read` compares with these.
  void keep(const Settings& settings) { current_ = settings; }

 private:
  Settings current_;
  Read read_;
  Takes takes_;
};

}  // namespace tandem
