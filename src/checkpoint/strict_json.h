// JSON as configuration files must be: one value, no key twice in an object, bounded depth. The rest of the
// tree parses every config.json, index and metadata file through this. Any thread.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "base/result.h"

namespace tandem {

// `source` names the text in messages. data_loss: not JSON, a key given twice, or deeper than kMaxJsonDepth.
Result<nlohmann::json> parse_strict_json(std::string_view text, const std::string& source);

// No file that we read nests deeper than about 6; a hostile one could nest by the million.
inline constexpr int kMaxJsonDepth = 64;

// `text` fit for a one-line message: control characters replaced, long text cut.
std::string printable(std::string_view text);

}  // namespace tandem
