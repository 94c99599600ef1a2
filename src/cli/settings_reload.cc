#include "cli/settings_reload.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/log.h"

namespace tandem {
namespace {

constexpr std::array kReloadable = {
    "engine.log_level",          "serving.api_key",         "serving.api_key_file",
    "serving.ssl_certfile",      "serving.ssl_keyfile",     "serving.allowed_origins",
    "serving.request_timeout_s", "serving.queue_timeout_s", "serving.drain_s"};

bool is_reloadable(const std::string& key) {
  return std::ranges::find(kReloadable, key) != kReloadable.end();
}

bool is_secret(const std::string& key) {
  return key.ends_with("api_key");
}

std::string shown(const std::string& value) {
  return value.empty() ? "none" : value;
}

std::string list_of_reloadable() {
  std::string list;
  for (const char* key : kReloadable) list += (list.empty() ? "" : ", ") + std::string(key);
  return list;
}

}  // namespace

std::span<const char* const> reloadable_settings() {
  return kReloadable;
}

void apply_log_level(const std::string& level) {
  set_log_level(level == "debug"     ? LogLevel::debug
                : level == "warning" ? LogLevel::warning
                : level == "error"   ? LogLevel::error
                                     : LogLevel::info);
}

SettingsReload::SettingsReload(const Settings& current, Read read, Takes takes)
    : current_(current), read_(std::move(read)), takes_(std::move(takes)) {}

Result<SettingsReload::Change> SettingsReload::read() const {
  TANDEM_ASSIGN(Settings again, read_());
  Settings before = current_;
  const OptionSet old_options = before.declare(), new_options = again.declare();
  Change change;
  for (size_t i = 0; i < old_options.options().size(); ++i) {
    const Option& option = new_options.options()[i];
    const std::string was = old_options.options()[i].get(), is = option.get();
    if (was == is || !takes_(option.key)) continue;
    const std::string what =
        is_secret(option.key) ? option.key : option.key + " " + shown(was) + ", now " + shown(is);
    // Certificates are renewed; a listening socket does not change between plain text and TLS.
    const bool changes_socket = option.key.starts_with("serving.ssl_") && was.empty() != is.empty();
    if (!is_reloadable(option.key) || changes_socket) {
      return make_error(ErrorCode::unsupported, what + ": this needs a restart; a running process takes " +
                                                    list_of_reloadable() +
                                                    (changes_socket ? ", and TLS stays on or off" : ""));
    }
    change.what.push_back(what);
  }
  change.settings = std::move(again);
  return change;
}

}  // namespace tandem
