// Declarations of settings that only measurements have: of Settings::declare, which calls them in the order
// of the reference.
#pragma once

#include "cli/settings.h"

namespace tandem {

void declare_load(OptionSet& set, LoadSettings& load);
void declare_sharing(OptionSet& set, SharingSettings& sharing);
void declare_trace(OptionSet& set, TraceSettings& trace);

}  // namespace tandem
