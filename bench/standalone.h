// What the benchmark programs share: `[--json] [--FLAG VALUE]... [WORD]`, the report on stdout, errors on
// stderr.
#pragma once

#include <functional>
#include <string>

#include "base/options.h"

namespace tandem::bench {

// Sets `flags` and `word` from the command line, prints report(json), and returns the exit status: 2 for bad
// arguments.
int run_standalone(int argc, char** argv, OptionSet& flags, std::string& word,
                   const std::function<Result<std::string>(bool json)>& report);

}  // namespace tandem::bench
