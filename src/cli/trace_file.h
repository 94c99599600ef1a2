// Trace files: what one attention rank recorded, or several, as Chrome trace JSON, which ui.perfetto.dev and
// chrome://tracing load. Processes are ranks; threads of an attention rank are its lanes and its engine,
// threads of an FFN rank are the lanes that asked it. An FFN rank's spans are placed on the clock of the
// attention rank that asked, in the middle of the round trip: where exactly they lie in it nobody measured.
// Times are microseconds from the first rank's start of recording; ranks are placed beside each other by the
// wall clocks of their hosts. "otherData" holds each attention rank's dead time in nanoseconds
// (attention/dead_time.h).
//
// One event a line, so that files are joined without being parsed. Any thread; files are the caller's.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/trace_ring.h"

namespace tandem {

// The recording rank.
struct TracedRank {
  std::string role;  // "attention" or "colocated"
  int64_t rank = 0;
};

// unavailable: the file cannot be written.
Status write_trace(const std::string& path, const TraceRing& ring, const TracedRank& rank);

// Joins the files of several ranks; `parts` stay as they are. not_found, invalid_argument: a part that is no
// such file, by name.
Status join_traces(const std::vector<std::string>& parts, const std::string& path);

// The dead times in a file that one of the two wrote: a JSON array, one object an attention rank.
Result<std::string> read_dead_times(const std::string& path);

// That as tables. data_loss: it is not such an array.
Result<std::string> dead_time_tables(const std::string& dead_times);

// Of an attention rank that records beside others for the trace `path`.
inline std::string rank_trace_path(const std::string& path, int64_t attention_rank) {
  return path + ".attention" + std::to_string(attention_rank);
}

}  // namespace tandem
