#include "cli/reload_on_hangup.h"

#include "base/log.h"
#include "cli/settings_reload.h"

namespace tandem {

void reload_on_hangup(StopSignal& stop, const Settings& settings,
                      const std::function<Status(const Settings&)>& apply) {
  if (settings.reload == nullptr || !stop.take_hangup()) return;
  const auto change = settings.reload->read();
  Status done = change ? Status{} : Status(std::unexpected(change.error()));
  if (done && apply && !change->what.empty()) done = apply(change->settings);
  if (!done) return log_error("settings stay as they were: " + done.error().message);
  std::string what;
  for (const std::string& each : change->what) what += (what.empty() ? "" : "; ") + each;
  const std::string line = "settings were read again: " + (what.empty() ? "nothing has changed" : what);
  apply_log_level("info");  // whoever asked wants to see this, whatever else is logged
  log_info(line);
  apply_log_level(change->settings.engine.log_level);
  if (what.empty()) return;
  settings.reload->keep(change->settings);
}

}  // namespace tandem
