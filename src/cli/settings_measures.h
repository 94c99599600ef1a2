// Declarations of settings that only measurements have, for Settings::declare.
#pragma once

#include "cli/settings.h"

namespace tandem {

void declare_load(OptionSet& set, LoadSettings& load);
void declare_sharing(OptionSet& set, SharingSettings& sharing);

}  // namespace tandem
