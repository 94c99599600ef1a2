// Reads the YAML configuration file (JSON is YAML) into an OptionSet. Refused, with file and line: a key that
// is unknown or given twice, a value of the wrong type, text that is not YAML.
#pragma once

#include <string>

#include "base/options.h"

namespace tandem {

Result<void> read_config_file(const std::string& path, OptionSet& options);

}  // namespace tandem
