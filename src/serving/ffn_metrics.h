// What /metrics of an FFN rank shows, in the text format of Prometheus. Names and units are in the .cc file
// and in docs/metrics.md. Pure; any thread.
#pragma once

#include <span>
#include <string>

#include "ffn/ffn_stats.h"

namespace tandem {

// `clients`: those that are connected; a client's counters go with it.
std::string ffn_metrics_text(const FfnStats& stats, std::span<const FfnClientReport> clients);

}  // namespace tandem
