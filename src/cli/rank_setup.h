// What a process that is one of several ranks settles before it starts: which rank it is, and where it
// listens. Main thread.
#pragma once

#include <string>

#include "cli/settings.h"

namespace tandem {

// Fills in what the settings left open: the role when `role` is empty (from the launcher), the rank, the
// numbers of ranks that addresses imply, the addresses of the FFN ranks where the launcher names their hosts,
// and the addresses on which this rank listens (its own entries of afd.ffn and afd.attention). Logs where the
// rank came from; sets the log's name ("ffn1"). Returns the role.
Result<std::string> settle_rank(Settings& settings, const std::string& role);

}  // namespace tandem
