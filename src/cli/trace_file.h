// Trace files: what one attention rank recorded, or several, as Chrome trace JSON, which ui.perfetto.dev and
// chrome://tracing load. Processes are ranks; threads of an attention rank are its lanes and its engine,
// threads of an FFN rank are the lanes that asked it. An FFN rank's spans are placed on the clock of the
// attention rank that asked, in the middle of the round trip: where exactly they lie in it nobody measured.
// What it recorded itself is a process of its own, by its own clock.
// Times are microseconds from the begin of the first rank's window; ranks are placed beside each other by the
// wall clocks of their hosts. "otherData" holds each rank's time in nanoseconds, of attention ranks
// attention/dead_time.h, of FFN ranks ffn/call_times.h.
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
  std::string role;  // "attention", "colocated" or "ffn"
  int64_t rank = 0;
};

// All that the ring holds; nobody writes into it. unavailable: the file cannot be written.
Status write_trace(const std::string& path, const TraceRing& ring, const TracedRank& rank);

// The file of a window of `ring`, which may go on recording. Some 200 bytes an event.
std::string trace_text(const TraceRing& ring, const TraceWindow& window, const TracedRank& rank);

// Joins the files of several ranks; `parts` stay as they are. not_found, invalid_argument: a part that is no
// such file, by name.
Status join_traces(const std::vector<std::string>& parts, const std::string& path);

// The dead times in a file of these functions: a JSON array, one object a rank.
Result<std::string> read_dead_times(const std::string& path);

// That as tables. data_loss: it is not such an array.
Result<std::string> dead_time_tables(const std::string& dead_times);

// Removes files when it goes; those that are not there do not matter.
struct TemporaryFiles {
  std::vector<std::string> paths;
  TemporaryFiles() = default;
  TemporaryFiles(const TemporaryFiles&) = delete;
  TemporaryFiles& operator=(const TemporaryFiles&) = delete;
  ~TemporaryFiles();
};

// Of an attention rank that records beside others for the trace `path`.
inline std::string rank_trace_path(const std::string& path, int64_t attention_rank) {
  return path + ".attention" + std::to_string(attention_rank);
}

}  // namespace tandem
