// Traces of ranks that run: GET /debug/trace of several at once, joined into one file.
#pragma once

#include "base/result.h"
#include "cli/settings.h"

namespace tandem {

// Asks trace.url for trace.seconds and writes trace.output. Blocks that long. A rank that cannot be reached,
// or refuses, is named with what it says; then no file is written.
Status fetch_traces(const TraceSettings& settings);

}  // namespace tandem
