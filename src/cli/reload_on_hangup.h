// What a serving process does at a SIGHUP (settings_reload.h). Main thread.
#pragma once

#include <functional>

#include "cli/settings.h"
#include "cli/stop_signal.h"

namespace tandem {

// Where one has come since the last call: reads the settings again, lets `apply` (may be empty) take those of
// HTTP, then takes the log level. An error of any of them leaves all as they were. The log says what came of
// it.
void reload_on_hangup(StopSignal& stop, const Settings& settings,
                      const std::function<Status(const Settings&)>& apply);

}  // namespace tandem
